"""Ridge regression to the indicators of the classes, with its strength and scale chosen on validation.

One factorisation serves all strengths (`BandForm`), and the products of features serve the choice and the last fit
(`Side`). scikit-learn's RidgeCV is not used: it chooses on the training images, and its eigendecomposition takes longer
than a Cholesky factorisation for each strength.

The choice is made in float32 where that is safe: where the least regularised system, the worst of all, solved for a
random right-hand side, satisfies the equations in float64 to `TOLERANCE`. The last fit is solved in float64.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import NamedTuple

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.system.memory_budget import UNBOUNDED, Memory
from polycov.system.rows import BLOCK, Batches, Rows, read_blocks
from polycov.training.band_form import BandForm
from polycov.training.calibration import calibrate
from polycov.training.ridge_sides import Equations, GramSide, ScatterSide, Side

STRENGTHS = tuple(10.0 ** (i / 2) for i in range(-10, 4))  # of the ridge, over the mean squared length of a feature
TOLERANCE = 1e-4  # of a solution in float32, relative


@dataclass(frozen=True)
class Ridge:
    """A linear classifier: logits = features @ weight + bias.

    Attributes:
        weight: (D, classes).
        bias: (classes,).
        strength: strength of the regularisation, chosen on validation.
        val_correct: which validation features are classified correctly with the chosen strength, before the last fit
            on training and validation together; (m,).
    """

    weight: Tensor
    bias: Tensor
    strength: float
    val_correct: Tensor

    @property
    def val_accuracy(self) -> float:
        """The share of validation features that are classified correctly."""
        return float(self.val_correct.double().mean())

    def logits(self, features: Tensor) -> Tensor:
        """Returns the scores of the classes for features (n, D), (n, classes)."""
        return features @ self.weight + self.bias

    def predict(self, features: Tensor) -> Tensor:
        """Returns the classes of features (n, D), (n,)."""
        return self.logits(features).argmax(1)


def fit_ridge(
    train: Rows,
    train_labels: Tensor,
    val: Rows,
    val_labels: Tensor,
    classes: int,
    both: Sequence[Rows] | None = None,
    *,
    refit: bool = True,
    memory: Memory = UNBOUNDED,
) -> Ridge:
    """Fits a ridge classifier: least squares to the indicators of the classes.

    The strength is chosen by accuracy on validation, then by squared error; the classifier is then fitted again on
    training and validation together. Its outputs become logits by the scale of `calibrate`, chosen on validation.

    Args:
        train: features, (n, D).
        train_labels: (n,).
        val: features, (m, D).
        val_labels: (m,).
        classes: their number.
        both: features of training and of validation for the last fit, (n, D) and (m, D); default: the same as above.
        refit: whether to fit again; without it, validation images are only chosen on.
        memory: how much may be used.

    Raises:
        PolycovError: if there are no validation features, or memory is too small.
    """
    require_validation_rows(val)
    memory.require_matrix(min(len(train) + len(val), train.shape[1]), f"A probe of {train.shape[1]} dimensions")
    labels = (train_labels, val_labels)
    try:
        return _fit((train, val), labels, classes, both, refit, memory, exact=False)
    except _NotAccurateError:
        pass  # what was computed is freed before it is computed again
    return _fit((train, val), labels, classes, both, refit, memory, exact=True)


class _NotAccurateError(Exception):
    """Float32 is not accurate enough for these features."""


def _fit(
    parts: Sequence[Rows],
    labels: Sequence[Tensor],
    classes: int,
    both: Sequence[Rows] | None,
    refit: bool,
    memory: Memory,
    *,
    exact: bool,
) -> Ridge:
    side = _side(parts, labels, classes, exact=exact)
    chosen = _choose(side, memory, exact=exact)
    if both is not None and refit:
        side = _side(both, labels, classes, exact=exact)
    equations = side.equations(2 if refit else 1)
    equations.matrix.diagonal().add_(chosen.strength * equations.unit)
    root, failed = torch.linalg.cholesky_ex(equations.matrix, upper=True)  # a fifth faster than the lower triangle
    if failed and not exact:
        raise _NotAccurateError
    weight = side.weight(equations, torch.cholesky_solve(equations.targets, root, upper=True))
    bias = equations.level - equations.mean @ weight
    return Ridge((weight * chosen.scale).float(), (bias * chosen.scale).float(), chosen.strength, chosen.correct)


def require_validation_rows(features: Rows) -> None:
    """Refuses to choose on validation features, or their labels, where there are none.

    Raises:
        PolycovError: if there are none.
    """
    if not len(features):
        raise PolycovError("The probe chooses its strength on validation images: expected --val-fraction above 0.")


def _side(parts: Sequence[Rows], labels: Sequence[Tensor], classes: int, *, exact: bool) -> Side:
    """Products of the features on the smaller side."""
    kind = GramSide if sum(map(len, parts)) <= parts[0].shape[1] else ScatterSide
    return kind(parts, labels, classes, exact=exact)


class _Choice(NamedTuple):
    """What is chosen on validation, and which validation features are then classified correctly."""

    strength: float
    scale: float
    correct: Tensor


def _choose(side: Side, memory: Memory, *, exact: bool) -> _Choice:
    """The best strength on validation.

    Raises:
        _NotAccurateError: if it takes more precision to tell.
    """
    equations, labels = side.equations(1), side.labels[1]
    dtype = torch.float64 if exact else torch.float32
    count, width = len(labels), len(equations.matrix)
    form, level = BandForm(equations.matrix.to(dtype)), equations.level.to(dtype)
    parts = range(0, count, BLOCK)
    rotated = Batches(
        lambda: (form.rotate(side.coordinates(equations, i, min(i + BLOCK, count)).to(dtype)) for i in parts),
        keep=memory.fits(2 * count, width),
    )
    best: tuple[tuple[float, float], float, Tensor] | None = None
    for strengths, solved in _solutions(side, equations, form, memory):
        together = solved.transpose(0, 1).reshape(width, -1)  # one product for all of them
        outputs = ((rows @ together).view(len(rows), len(solved), -1).transpose(0, 1) + level for rows in rotated)
        values = torch.stack(list(starmap(_values, zip(outputs, labels.split(BLOCK), strict=True)))).sum(0)
        for strength, each, value in zip(strengths, solved, map(tuple, values.tolist()), strict=True):
            if best is None or value > best[0]:
                best = value, strength, each.clone()
    _, strength, coefficients = best  # type: ignore[misc]
    chosen, begin = memory.rows(count, side.classes), 0
    for rows in rotated:
        chosen[begin : begin + len(rows)] = rows @ coefficients + level
        begin += len(rows)
    correct = torch.cat([block.argmax(1) for block in read_blocks([chosen])]) == labels
    return _Choice(strength, calibrate(chosen, labels), correct)


def _solutions(
    side: Side, equations: Equations, form: BandForm, memory: Memory
) -> Iterator[tuple[Sequence[float], Tensor]]:
    """Yields strengths with their coefficients for rotated features, (strengths, side, classes), some at a time.

    Raises:
        _NotAccurateError: if those in float32 are not accurate.
    """
    dtype, width = form.dtype, len(equations.matrix)
    targets = form.rotate(equations.targets.mT.to(dtype)).mT
    together = len(STRENGTHS) if memory.fits(2 * len(STRENGTHS) * (width + BLOCK), side.classes) else 1
    for first in range(0, len(STRENGTHS), together):
        strengths = STRENGTHS[first : first + together]
        try:
            solved = form.solve(targets, equations.unit * torch.tensor(strengths, dtype=dtype))
        except torch.linalg.LinAlgError as failure:  # type: ignore[attr-defined]
            raise _NotAccurateError from failure
        if not first and dtype != torch.float64:
            _require_accuracy(side, equations, form, solved[0])
        yield strengths, solved


def _values(outputs: Tensor, labels: Tensor) -> Tensor:
    """How many outputs are right, and their squared error, negated; (strengths, 2): the larger, the better."""
    right = (outputs.argmax(2) == labels).sum(1).double()
    return torch.stack([right, -squared_error(outputs, labels)], 1)


def _require_accuracy(side: Side, equations: Equations, form: BandForm, solved: Tensor) -> None:
    """Checks the solution for the least strength, which is the worst, in float64: a random sum over the classes.

    Raises:
        _NotAccurateError: if it is not accurate.
    """
    mix = torch.randn(side.classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    solution = form.rotate((solved @ mix.to(solved))[None], back=True)[0].double()
    if not side.error(equations, solution, equations.targets @ mix, STRENGTHS[0]) < TOLERANCE:
        raise _NotAccurateError


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Returns the sum of squared distances of outputs (…, m, classes) from the indicators of the labels (m,), which are
    not stored: ‖o − t‖² = ‖o‖² − 2⟨o, t⟩ + ‖t‖².
    """
    inner = outputs[..., torch.arange(len(labels)), labels].sum(-1, dtype=torch.float64)
    return outputs.flatten(-2).square().sum(-1, dtype=torch.float64) - 2 * inner + len(labels)

"""Ridge regression to the indicators of the classes, with its strength and scale chosen on validation.

scikit-learn's RidgeCV is not used: it would factorise again for every strength, and chooses on the training images.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polycov.errors import PolycovError

STRENGTHS = tuple(10.0 ** (i / 2) for i in range(-10, 4))  # of the ridge, over the mean squared length of a feature
SCALES = (1e-2, 1e4)  # of the logits, at least and at most
ROWS = 1024  # outputs at a time: there may be thousands of classes


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
    train: Tensor,
    train_labels: Tensor,
    val: Tensor,
    val_labels: Tensor,
    classes: int,
    both: Tensor | None = None,
    *,
    refit: bool = True,
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
        both: features of training and validation for the last fit, (n + m, D); default: the same as above.
        refit: whether to fit again; without it, validation images are only chosen on.

    Raises:
        PolycovError: if there are no validation features.
    """
    require_validation(val)
    choice = _choose(train, train_labels, val, val_labels, classes)
    if not refit:
        return _solve(train, train_labels, classes, choice)
    both = torch.cat([train, val]) if both is None else both
    return _solve(both, torch.cat([train_labels, val_labels]), classes, choice)


def require_validation(features: Tensor) -> None:
    if not len(features):
        raise PolycovError("The probe chooses its strength on validation images: expected --val-fraction above 0.")


class _Choice(NamedTuple):
    """What is chosen on validation, and which validation features are then classified correctly."""

    strength: float
    scale: float
    correct: Tensor


def _choose(train: Tensor, train_labels: Tensor, val: Tensor, val_labels: Tensor, classes: int) -> _Choice:
    path = _RidgePath(train, train_labels, classes)
    best: tuple[tuple[float, float], float, Tensor] | None = None
    for strength, outputs in zip(STRENGTHS, path.predict(val, STRENGTHS), strict=True):
        accuracy = float((outputs.argmax(1) == val_labels).double().mean())
        value = (accuracy, -_squared_error(outputs, val_labels))
        if best is None or value > best[0]:
            best = (value, strength, outputs)
    _, strength, outputs = best  # type: ignore[misc]
    return _Choice(strength, calibrate(outputs, val_labels), outputs.argmax(1) == val_labels)


def _squared_error(outputs: Tensor, labels: Tensor) -> float:
    """The mean squared distance of outputs (m, classes) from the indicators of the labels, which are not stored:
    ‖o − t‖² = ‖o‖² − 2⟨o, t⟩ + ‖t‖².
    """
    inner = float(outputs.gather(1, labels[:, None]).sum())
    return (float(torch.linalg.vector_norm(outputs)) ** 2 - 2 * inner + len(outputs)) / outputs.numel()


def _solve(features: Tensor, labels: Tensor, classes: int, choice: _Choice) -> Ridge:
    weight, bias = _RidgePath(features, labels, classes).solve(choice.strength)
    return Ridge((weight * choice.scale).float(), (bias * choice.scale).float(), choice.strength, choice.correct)


def calibrate(outputs: Tensor, labels: Tensor) -> float:
    """Returns the scale s, an inverse temperature, for which softmax(s · outputs) are the best probabilities.

    It minimises the cross-entropy to the labels, each softened by 1 / (m + 1) of a uniform distribution, as if one
    more image had been seen whose class nobody knows: m images that are all classified correctly would otherwise call
    for an infinite scale. The loss is convex in s, so its derivative, the mean over images of Σ (p − t) · outputs, has
    one root, found by bisection.

    Args:
        outputs: of a classifier for images it was not fitted to, (m, classes).
        labels: (m,).

    Example:
        >>> outputs = torch.eye(2, dtype=torch.float64).repeat(49, 1)  # 98 images, all of them correct
        >>> scale = calibrate(outputs, outputs.argmax(1))
        >>> round(float((scale * outputs).softmax(1).amax()), 4)  # so one mistake in 198 is to be expected
        0.9949
    """
    outputs = outputs.double()
    softness = 1 / (len(outputs) + 1)
    true = float(outputs.gather(1, labels[:, None]).sum())
    wanted = (1 - softness) * true + softness * float(outputs.sum()) / outputs.shape[1]  # Σ t · outputs
    low, high = map(math.log, SCALES)
    for _ in range(40):
        middle = (low + high) / 2
        expected = sum(float(((math.exp(middle) * rows).softmax(1) * rows).sum()) for rows in outputs.split(ROWS))
        low, high = (middle, high) if expected < wanted else (low, middle)
    return math.exp((low + high) / 2)


class _RidgePath:
    """Ridge regressions on one set of features, for any strength, on the smaller side of the feature matrix."""

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        features = features.double()
        self.mean = features.mean(0)
        self.rows = features - self.mean
        self.level = torch.bincount(labels, minlength=classes).double() / len(labels)
        self.unit = float(self.rows.square().sum()) / len(self.rows) or 1.0  # mean squared length
        self.dual = len(self.rows) <= self.rows.shape[1]
        self.gram = self.rows @ self.rows.mT if self.dual else self.rows.mT @ self.rows
        # Centred rows add up to zero, so the level of the targets does not matter to their products.
        self.targets = _indicators(labels, classes) - self.level if self.dual else self._class_sums(labels, classes)

    def _class_sums(self, labels: Tensor, classes: int) -> Tensor:
        """The products of rows and indicators, which would be n × classes numbers; (D, classes)."""
        sums = torch.zeros(classes, self.rows.shape[1], dtype=torch.float64)
        return sums.index_add_(0, labels, self.rows).mT

    def _coefficients(self, strength: float) -> Tensor:
        """Of the rows, (n, classes), or of the columns, (D, classes)."""
        damped = self.gram + strength * self.unit * torch.eye(len(self.gram), dtype=torch.float64)
        return torch.cholesky_solve(self.targets, torch.linalg.cholesky(damped))

    def solve(self, strength: float) -> tuple[Tensor, Tensor]:
        """Weight (D, classes) and bias (classes,)."""
        weight = self._coefficients(strength)
        if self.dual:
            weight = self.rows.mT @ weight
        return weight, self.level - self.mean @ weight

    def predict(self, features: Tensor, strengths: Iterable[float]) -> Iterator[Tensor]:
        """Yields the outputs of each strength, (m, classes)."""
        features = features.double() - self.mean
        if self.dual:
            features = features @ self.rows.mT  # once for all strengths
        for strength in strengths:
            yield features @ self._coefficients(strength) + self.level


def _indicators(labels: Tensor, classes: int) -> Tensor:
    return torch.zeros(len(labels), classes, dtype=torch.float64).scatter_(1, labels[:, None], 1.0)

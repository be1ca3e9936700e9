"""A classifier in closed form: principal components, a pool, ridge regression.

scikit-learn's RidgeCV is not used: it would factorise again for every strength, and chooses on the training images.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polycov.data.images import Split
from polycov.errors import PolycovError
from polycov.models.model import Model
from polycov.models.modes import evaluation_mode
from polycov.pooling.batches import Repeatable
from polycov.pooling.methods import needs_training
from polycov.pooling.pool import Pool
from polycov.pooling.post.pca import principal_components
from polycov.pooling.post.statistics import Statistics
from polycov.pooling.tokens import maps_to_tokens

STRENGTHS = tuple(10.0 ** (i / 2) for i in range(-10, 4))  # of the ridge, over the mean squared length of a feature
SCALES = (1e-2, 1e4)  # of the logits, at least and at most


def channel_components(batches: Iterable[Tensor], channels: int | None = None) -> tuple[Tensor, Tensor]:
    """Returns the mean (C,) and the leading principal components (channels, C) of local features, in float64.

    Args:
        batches: maps (B, C, H, W) or tokens (B, N, C).
        channels: the number of components; default: as many as there are.

    Raises:
        PolycovError: if there are fewer local features than components.
    """
    statistics = Statistics()
    width = 0
    for features in batches:
        tokens = maps_to_tokens(features)
        width = tokens.shape[-1]
        statistics.update(tokens.reshape(-1, width))
    return principal_components(statistics, min(width, statistics.samples) if channels is None else channels)


@torch.no_grad()
def fit_reduction(model: Model, batches: Iterable[Tensor]) -> None:
    """Sets a linear reduction to the principal components of local features.

    Args:
        model: model with a reduction "linear".
        batches: local features of the backbone, maps (B, C, H, W) or tokens (B, N, C).

    Raises:
        PolycovError: if there are fewer features than components.
    """
    reduction = model.reduction
    if not isinstance(reduction, nn.Conv2d):
        raise PolycovError("Principal components need a linear reduction.")
    if reduction.out_channels > reduction.in_channels:
        raise PolycovError(
            f"Expected at most the {reduction.in_channels} channels of the backbone, got {reduction.out_channels}."
        )
    try:
        mean, components = channel_components(batches, reduction.out_channels)
    except PolycovError as error:
        raise PolycovError(f"{error} Choose fewer --channels, or add training images.") from error
    reduction.weight.copy_(components[..., None, None])
    if reduction.bias is not None:
        reduction.bias.copy_(-(components @ mean))


@torch.no_grad()
def fit_pool(model: Model, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Fits the stages of the pool that are fitted to data, if there are any.

    Args:
        model: model with the pool.
        batches: local features of the backbone, as in `fit_reduction`, and labels (B,); they may be read several times.
    """
    if not model.pool.is_fitted:
        with evaluation_mode(model):
            model.pool.fit(Repeatable(lambda: ((model.reduce(features), labels) for features, labels in batches)))


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

    Raises:
        PolycovError: if there are no validation features.
    """
    _require_validation(val)
    choice = _choose(train, train_labels, val, val_labels, classes)
    both = torch.cat([train, val]) if both is None else both
    return _solve(both, torch.cat([train_labels, val_labels]), classes, choice)


def _require_validation(features: Tensor) -> None:
    if not len(features):
        raise PolycovError("The probe chooses its strength on validation images: expected --val-fraction above 0.")


class _Choice(NamedTuple):
    """What is chosen on validation, and which validation features are then classified correctly."""

    strength: float
    scale: float
    correct: Tensor


def _choose(train: Tensor, train_labels: Tensor, val: Tensor, val_labels: Tensor, classes: int) -> _Choice:
    path = _RidgePath(train, train_labels, classes)
    targets = _indicators(val_labels, classes)
    best: tuple[tuple[float, float], float, Tensor] | None = None
    for strength, outputs in zip(STRENGTHS, path.predict(val, STRENGTHS), strict=True):
        accuracy = float((outputs.argmax(1) == val_labels).double().mean())
        value = (accuracy, -float((outputs - targets).square().mean()))
        if best is None or value > best[0]:
            best = (value, strength, outputs)
    _, strength, outputs = best  # type: ignore[misc]
    return _Choice(strength, calibrate(outputs, val_labels), outputs.argmax(1) == val_labels)


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
    targets = (1 - softness) * _indicators(labels, outputs.shape[1]) + softness / outputs.shape[1]
    low, high = map(math.log, SCALES)
    for _ in range(40):
        middle = (low + high) / 2
        error = (math.exp(middle) * outputs).softmax(1) - targets
        low, high = (middle, high) if float((error * outputs).sum()) < 0 else (low, middle)
    return math.exp((low + high) / 2)


class _RidgePath:
    """Ridge regressions on one set of features, for any strength, on the smaller side of the feature matrix."""

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        features = features.double()
        self.mean = features.mean(0)
        self.rows = features - self.mean
        targets = _indicators(labels, classes)
        self.level = targets.mean(0)
        targets = targets - self.level
        self.unit = float(self.rows.square().sum()) / len(self.rows) or 1.0  # mean squared length
        self.dual = len(self.rows) <= self.rows.shape[1]
        self.gram = self.rows @ self.rows.mT if self.dual else self.rows.mT @ self.rows
        self.targets = targets if self.dual else self.rows.mT @ targets

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
    return nn.functional.one_hot(labels, classes).double()


@torch.inference_mode()
def pool_batches(pool: Pool, batches: Iterable[Tensor]) -> Tensor:
    """Returns the pooled features of batches of local features, (n, D)."""
    with evaluation_mode(pool):
        return torch.cat([pool(features) for features in batches])


@dataclass(frozen=True)
class Probe:
    """A pool with a ridge classifier on top.

    Attributes:
        ridge: the classifier.
        features: pooled features of each split, (n, D).
        pool_seconds: the time it took to pool them.
    """

    ridge: Ridge
    features: dict[Split, Tensor]
    pool_seconds: float


def require_closed_form(method: str) -> None:
    """Refuses a method that a closed form cannot fit.

    Raises:
        PolycovError: if its parameters need training.
    """
    if needs_training(method):
        raise PolycovError(
            f"{method!r} has parameters that must be trained, and a probe in closed form trains none: use polycov "
            "compare --head train, or polycov train --freeze."
        )


def fit_probe(
    pool: Pool, batches: Mapping[Split, Iterable[Tensor]], labels: Mapping[Split, Tensor], classes: int
) -> Probe:
    """Fits the pool, if it needs fitting and is not fitted yet, and a ridge classifier on its features.

    Both are fitted to the training images, the strength of the ridge is chosen on validation, and both are fitted again
    to training and validation together.

    Args:
        pool: pool of local features.
        batches: local features as the pool takes them, of "train", "val" and any further splits to pool; they may be
            read several times.
        labels: labels of "train" and "val", (n,).
        classes: their number.

    Raises:
        PolycovError: if there are no validation images, or the pool needs training.
    """
    fitted, features, seconds = pool_splits(pool, batches, labels)
    before, both = fitted or features, torch.cat([features["train"], features["val"]])
    ridge = fit_ridge(before["train"], labels["train"], before["val"], labels["val"], classes, both)
    return Probe(ridge, features, seconds)


def pool_splits(
    pool: Pool, batches: Mapping[Split, Iterable[Tensor]], labels: Mapping[Split, Tensor], *, again: bool = True
) -> tuple[dict[Split, Tensor] | None, dict[Split, Tensor], float]:
    """Fits the pool, if it needs fitting and is not fitted yet, and pools all splits; arguments as in `fit_probe`.

    Args:
        pool: pool of local features.
        batches: local features.
        labels: of "train" and "val".
        again: whether the pool is fitted to training and validation together in the end.

    Returns:
        features of the pool fitted to the training images, if it was fitted again; features of the pool as it is then;
        and the time to pool all splits once.

    Raises:
        PolycovError: if the pool needs training, or there are no validation images.
    """
    require_closed_form(pool.spec)
    fit_the_pool = not pool.is_fitted
    if fit_the_pool:
        pool.fit(Repeatable(lambda: _labelled(batches, labels, ["train"])))
    start = time.perf_counter()
    features = {split: pool_batches(pool, local) for split, local in batches.items()}
    seconds = time.perf_counter() - start
    _require_validation(features["val"])
    if not (fit_the_pool and again):
        return None, features, seconds
    pool.fit(Repeatable(lambda: _labelled(batches, labels, ["train", "val"])))
    return features, {split: pool_batches(pool, local) for split, local in batches.items()}, seconds


def _labelled(
    batches: Mapping[Split, Iterable[Tensor]], labels: Mapping[Split, Tensor], splits: Iterable[Split]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of some splits, with their labels."""
    for split in splits:
        begin = 0
        for features in batches[split]:
            yield features, labels[split][begin : begin + len(features)]
            begin += len(features)


@torch.no_grad()
def set_classifier(model: Model, ridge: Ridge) -> None:
    """Sets the classifier of a model to a ridge."""
    model.classifier.weight.copy_(ridge.weight.mT)
    model.classifier.bias.copy_(ridge.bias)

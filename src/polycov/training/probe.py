"""A first answer in closed form: principal components, a pool, a ridge classifier."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError
from polycov.models.model import Model
from polycov.pooling.post.project import Project, StreamingPCA

STRENGTHS = tuple(10.0 ** (i / 2) for i in range(-10, 4))  # of the ridge, over the mean squared length of a feature
SCALES = tuple(2.0 ** (i / 2) for i in range(-4, 17))  # of the logits


@torch.no_grad()
def fit_reduction(model: Model, batches: Iterable[Tensor]) -> None:
    """Makes a linear reduction the principal components of local features.

    Args:
        model: with a reduction "linear".
        batches: of local features of the backbone, maps (B, C, H, W) or tokens (B, N, C).

    Raises:
        PolycovError: if there are fewer features than components.
    """
    reduction = model.reduction
    if not isinstance(reduction, nn.Conv2d):
        raise PolycovError("Principal components are for a reduction that is linear.")
    if reduction.out_channels > reduction.in_channels:
        raise PolycovError(
            f"Expected at most the {reduction.in_channels} channels of the backbone, got {reduction.out_channels}."
        )
    pca = StreamingPCA()
    for features in batches:
        tokens = features.flatten(2).mT if features.ndim == 4 else features
        pca.update(tokens.reshape(-1, tokens.shape[-1]))
    mean, components = pca.components(reduction.out_channels)
    reduction.weight.copy_(components[..., None, None])
    if reduction.bias is not None:
        reduction.bias.copy_(-(components @ mean))


def fit_pool(model: Model, batches: Iterable[Tensor]) -> None:
    """Fits what in the pool is fitted to data, if anything is; ``batches`` as in `fit_reduction`."""
    if any(isinstance(stage, Project) and not bool(stage.fitted) for stage in model.pool.post):
        training = model.training
        model.eval()
        with torch.no_grad():
            model.pool.fit(model.reduce(features) for features in batches)
        model.train(training)


@dataclass(frozen=True)
class Ridge:
    """A linear classifier: logits = features @ weight + bias.

    Attributes:
        weight: (D, classes).
        bias: (classes,).
        strength: of the regularisation, chosen on validation.
        val_right: which validation features are classified right with the strength chosen, before the last fit on
            training and validation together; (m,).
    """

    weight: Tensor
    bias: Tensor
    strength: float
    val_right: Tensor

    @property
    def val_accuracy(self) -> float:
        """The share of validation features that are right."""
        return float(self.val_right.double().mean())


def fit_ridge(train: Tensor, train_labels: Tensor, val: Tensor, val_labels: Tensor, classes: int) -> Ridge:
    """Fits a ridge classifier, least squares to the indicators of the classes.

    The strength is chosen by accuracy on validation, then the squared error; with it the classifier is fitted again
    on training and validation together. The scale of the logits is the one of least cross-entropy on validation.

    Args:
        train: features, (n, D).
        train_labels: (n,).
        val: features, (m, D).
        val_labels: (m,).
        classes: their number.

    Raises:
        PolycovError: if there are no features to choose on.
    """
    if not len(val):
        raise PolycovError("The probe chooses on validation pictures: expected --val-fraction above 0.")
    path = _Path(train, train_labels, classes)
    targets = _indicators(val_labels, classes)
    best: tuple[tuple[float, float], float, Tensor] | None = None
    for strength, outputs in zip(STRENGTHS, path.predict(val, STRENGTHS), strict=True):
        accuracy = float((outputs.argmax(1) == val_labels).double().mean())
        value = (accuracy, -float((outputs - targets).square().mean()))
        if best is None or value > best[0]:
            best = (value, strength, outputs)
    _, strength, outputs = best  # type: ignore[misc]
    losses = [float(nn.functional.cross_entropy(outputs * scale, val_labels)) for scale in SCALES]
    scale = SCALES[min(range(len(SCALES)), key=losses.__getitem__)]
    weight, bias = _Path(torch.cat([train, val]), torch.cat([train_labels, val_labels]), classes).solve(strength)
    return Ridge((weight * scale).float(), (bias * scale).float(), strength, outputs.argmax(1) == val_labels)


class _Path:
    """Ridge regressions of one set of features, for any strength, on the smaller side of the features."""

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


@torch.no_grad()
def pooled(model: Model, batches: Iterable[Tensor]) -> Tensor:
    """Returns the pooled features of local features, (n, D)."""
    model.eval()
    return torch.cat([model.pool(model.reduce(features)) for features in batches])


@torch.no_grad()
def set_classifier(model: Model, ridge: Ridge) -> None:
    """Makes a ridge the classifier of a model."""
    model.classifier.weight.copy_(ridge.weight.mT)
    model.classifier.bias.copy_(ridge.bias)

"""A linear map fitted in closed form to training features."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError, finite_number, one_of, positive_int
from polycov.pooling.post.base import FittedPost
from polycov.pooling.post.classes import STRENGTH, class_components
from polycov.pooling.post.pca import completed, principal_components, whitened_components
from polycov.pooling.post.statistics import Statistics
from polycov.pooling.registry import register

FITS: dict[str, Callable[[Statistics, int], tuple[Tensor, Tensor]]] = {
    "pca": principal_components,
    "whitened": whitened_components,
    "classes": class_components,
}
AUTO = "auto"


@register(
    "post",
    "project",
    "project(5)",
    "project(5, fit=whitened)",
    "project(5, fit=classes)",
    "project(5, fit=classes, shrinkage=auto)",
)
class Project(FittedPost):
    """A linear map to ``dim`` dimensions, fitted by ``pool.fit(batches)`` and trainable from there.

    A random sketch must be wide because it does not depend on the data; a fitted map can be narrow.

    Args:
        features: the dimension of the input.
        dim: the dimension of the output. If the samples span fewer dimensions, a random basis of what they do not reach
            completes it.
        fit: pca, principal components; whitened, principal components scaled to similar variance; classes, what a ridge
            classifier needs, completed by principal components: batches come with labels.
        shrinkage: of the covariance within classes, in a fit to classes, over the mean squared length of a feature;
            "auto" for the one with the smallest generalised cross-validation error.
        seed: of the random basis.
    """

    def __init__(
        self, features: int, dim: int, *, fit: str = "pca", shrinkage: float | str = STRENGTH, seed: int = 0
    ) -> None:
        super().__init__(features)
        self.out_features = positive_int("project", "dim", dim)
        if dim > features:
            raise PolycovError(f"Expected dim of project to be at most the {features} features before it, got {dim}.")
        self.kind, self.seed = one_of("project", "fit", fit, FITS), seed
        if shrinkage != STRENGTH and fit != "classes":
            raise PolycovError(f"Only project(fit=classes) has a shrinkage, got fit={fit}.")
        auto = shrinkage == AUTO
        self.shrinkage = None if auto else finite_number("project", "shrinkage", shrinkage, 1e-6, 1e6)
        self.weight = nn.Parameter(torch.zeros(dim, features))
        self.bias = nn.Parameter(torch.zeros(dim))

    @torch.no_grad()
    def fit(self, statistics: Statistics) -> None:
        """Fits the map: x ↦ components (x − mean).

        Raises:
            PolycovError: if there are no samples, or a fit to classes gets no labels.
        """
        if not statistics.samples:
            raise PolycovError(f"Cannot fit project({self.out_features}) to 0 samples.")
        most = min(self.out_features, statistics.samples)
        fit = partial(class_components, strength=self.shrinkage) if self.kind == "classes" else FITS[self.kind]
        mean, components = fit(statistics, most)
        components = completed(components, self.out_features, self.seed)
        self.weight.copy_(components)
        self.bias.copy_(-(components @ mean))
        self._set_fitted()

    def forward(self, x: Tensor) -> Tensor:
        self._require_fitted(f"project({self.out_features})")
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))

"""A linear map fitted in closed form to training features."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError, known, positive_int
from polycov.pooling.post.base import FittedPost
from polycov.pooling.post.classes import class_components
from polycov.pooling.post.pca import completed, principal_components, whitened_components
from polycov.pooling.post.statistics import Statistics
from polycov.pooling.registry import register

FITS: dict[str, Callable[[Statistics, int], tuple[Tensor, Tensor]]] = {
    "pca": principal_components,
    "whitened": whitened_components,
    "classes": class_components,
}


@register("post", "project", "project(5)", "project(5, fit=whitened)", "project(5, fit=classes)")
class Project(FittedPost):
    """A linear map to ``dim`` dimensions, fitted by ``pool.fit(batches)`` and trainable from there.

    A random sketch must be wide because it does not depend on the data; a fitted map can be narrow.

    Args:
        features: the dimension of the input.
        dim: the dimension of the output. If the samples span fewer dimensions, a random basis of what they do not reach
            completes it.
        fit: pca, principal components; whitened, principal components scaled to similar variance; classes, what a ridge
            classifier needs, completed by principal components: batches come with labels.
        seed: of the random basis.
    """

    def __init__(self, features: int, dim: int, *, fit: str = "pca", seed: int = 0) -> None:
        super().__init__(features)
        self.out_features = positive_int("project", "dim", dim)
        if dim > features:
            raise PolycovError(f"Expected dim of project to be at most the {features} features before it, got {dim}.")
        if fit not in FITS:
            raise PolycovError(f"Unknown fit {fit!r} of project. {known(str(fit), FITS)}")
        self.kind, self.seed = fit, seed
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
        mean, components = FITS[self.kind](statistics, most)
        components = completed(components, self.out_features, self.seed)
        self.weight.copy_(components)
        self.bias.copy_(-(components @ mean))
        self._set_fitted()

    def forward(self, x: Tensor) -> Tensor:
        self._require_fitted(f"project({self.out_features})")
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))

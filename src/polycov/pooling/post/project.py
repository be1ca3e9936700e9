"""A linear map fitted in closed form to training features."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import NotFittedError, PolycovError, positive_int
from polycov.pooling.post.base import Post
from polycov.pooling.post.pca import StreamingPCA
from polycov.pooling.registry import register
from polycov.pooling.transforms import is_batched


@register("post", "project", "project(5)")
class Project(Post):
    """A linear map to ``dim`` dimensions, fitted by ``pool.fit(batches)`` (PCA) and trainable from there.

    A random sketch must be wide because it does not depend on the data; a fitted map can be narrow.

    Args:
        features: the dimension of the input.
        dim: the dimension of the output.
    """

    fittable = True
    fitted: Tensor

    def __init__(self, features: int, dim: int) -> None:
        super().__init__(positive_int("project", "dim", dim))
        if dim > features:
            raise PolycovError(f"Expected dim of project to be at most the {features} features before it, got {dim}.")
        self.weight = nn.Parameter(torch.zeros(dim, features))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))
        self._known_fitted = False  # a copy of the buffer that can be read without waiting for the device

    @property
    def is_fitted(self) -> bool:
        """Whether the map is fitted, or was loaded from one that is."""
        return self._known_fitted or (not self.fitted.is_meta and bool(self.fitted))

    @torch.no_grad()
    def fit(self, batches: Iterable[Tensor]) -> None:
        """Fits the map to batches of features, in one pass: x ↦ components (x − mean).

        Raises:
            PolycovError: if there are fewer samples than dimensions of the output.
        """
        pca = StreamingPCA()
        for batch in batches:
            pca.update(batch)
        mean, components = pca.components(self.out_features)
        self.weight.copy_(components)
        self.bias.copy_(-(components @ mean))
        self.fitted.fill_(True)
        self._known_fitted = True

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._known_fitted = not self.fitted.is_meta and bool(self.fitted)

    def forward(self, x: Tensor) -> Tensor:
        if not (self._known_fitted or is_batched(self.fitted) or bool(self.fitted)):
            raise NotFittedError(
                f"The stage project({self.out_features}) is not fitted. Call pool.fit(batches) with batches of "
                "training features, or load the state_dict of a fitted pool."
            )
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))

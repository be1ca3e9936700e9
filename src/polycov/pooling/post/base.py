"""The interface of the stages that follow the vector."""

from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import NotFittedError
from polycov.pooling.post.statistics import Statistics
from polycov.pooling.transforms import is_batched


class Post(nn.Module):
    """Base class of the stages that follow the vector: (B, ``features``) → (B, ``out_features``).

    Attributes:
        degree: p if scaling the input by a scales the output by a^p; the pool then applies the scale of the features
            after the stage. None if the stage needs its input at its true scale.
        affine: whether the stage is an affine map, the same for every sample.
        fittable: whether the stage is fitted to data by `fit`.
        in_features: the size of the input.
        out_features: the size of the output; the same unless a stage sets it.
    """

    degree: float | None = None
    affine: bool = False
    fittable: bool = False

    def __init__(self, features: int) -> None:
        super().__init__()
        self.in_features = features
        self.out_features = features

    @property
    def is_fitted(self) -> bool:
        """Whether the stage can be applied: it is fitted, or needs no fitting."""
        return True

    def fit(self, statistics: Statistics) -> None:
        """Fits the stage to statistics of its input."""
        raise NotImplementedError


class FittedPost(Post):
    """Base class of affine stages that are fitted to data. A subclass calls `_set_fitted` and `_require_fitted`."""

    affine = True
    fittable = True
    fitted: Tensor

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))
        self._known_fitted = False  # a copy of the buffer that can be read without waiting for the device

    @property
    def is_fitted(self) -> bool:
        """Whether the stage is fitted, or was loaded from one that is."""
        return self._known_fitted or (not self.fitted.is_meta and bool(self.fitted))

    def _set_fitted(self) -> None:
        self.fitted.fill_(True)
        self._known_fitted = True

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._known_fitted = not self.fitted.is_meta and bool(self.fitted)

    def _require_fitted(self, name: str) -> None:
        if not (self._known_fitted or is_batched(self.fitted) or bool(self.fitted)):
            raise NotFittedError(
                f"The stage {name} is not fitted. Call pool.fit(batches) with batches of training features, or load "
                "the state_dict of a fitted pool."
            )

"""The interface of the stages that follow the vector."""

from collections.abc import Iterable

from torch import Tensor, nn


class Post(nn.Module):
    """Base class of the stages that follow the vector: (B, ``features``) → (B, ``out_features``).

    Attributes:
        degree: p if scaling the input by a scales the output by a^p; the pool then applies the scale of the features
            after the stage. None if the stage needs its input at its true scale.
        steep: whether the derivative is unbounded, so that the stage amplifies rounding errors.
        fittable: whether the stage is fitted to data by `fit`.
        out_features: the size of the output.
    """

    degree: float | None = None
    steep: bool = False
    fittable: bool = False

    def __init__(self, features: int) -> None:
        super().__init__()
        self.out_features = features

    @property
    def is_fitted(self) -> bool:
        """Whether the stage can be applied: it is fitted, or needs no fitting."""
        return True

    def fit(self, batches: Iterable[Tensor]) -> None:
        """Fits the stage to batches of its input, (B, ``features``)."""
        raise NotImplementedError

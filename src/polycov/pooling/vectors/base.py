"""The interface of vectors."""

from torch import Tensor, nn


class Vector(nn.Module):
    """A linear map from a symmetric matrix (B, C, C) to a vector (B, ``out_features``).

    Attributes:
        channels: C.
        out_features: the size of the vector.
        is_sketch: whether inner products of the vectors only estimate those of the matrices.
        has_factored: whether `factored` exists, for the route "paper".
    """

    is_sketch = False
    has_factored = False

    def __init__(self, channels: int, out_features: int) -> None:
        super().__init__()
        self.channels = channels
        self.out_features = out_features

    def forward(self, matrix: Tensor) -> Tensor:
        """Returns the vector of a matrix."""
        raise NotImplementedError

    def factored(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the vector of leftᵀ right, (B, N, C) each, by the algorithm of the literature, at every location."""
        raise NotImplementedError

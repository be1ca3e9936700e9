"""The interface of vectors."""

from torch import Tensor, nn

Channels = int | tuple[int, int]
MOST_DIMENSIONS = 2**24  # of a feature: 64 MB in float32


class Vector(nn.Module):
    """A linear map from a symmetric matrix (B, C, C), or any matrix (B, C₁, C₂), to a vector (B, ``out_features``).

    Attributes:
        sides: C₁ and C₂.
        symmetric: whether the matrices are symmetric.
        size: how many entries are distinct: C(C+1)/2 of a symmetric matrix, C₁C₂ of any other.
        out_features: the size of the vector.
        is_sketch: whether inner products of the vectors only estimate those of the matrices.
        has_factored: whether `factored` exists, for the route "paper".
    """

    is_sketch = False
    has_factored = False

    def __init__(self, channels: Channels, out_features: int) -> None:
        super().__init__()
        self.sides, self.symmetric = sides_of(channels), isinstance(channels, int)
        rows, columns = self.sides
        self.size = rows * (rows + 1) // 2 if self.symmetric else rows * columns
        self.out_features = out_features

    def forward(self, matrix: Tensor) -> Tensor:
        """Returns the vector of a matrix."""
        raise NotImplementedError

    def factored(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the vector of leftᵀ right, (B, N, C) each, by the algorithm of the literature, at every location."""
        raise NotImplementedError


def sides_of(channels: Channels) -> tuple[int, int]:
    """Returns C₁ and C₂ of the matrices: ``channels`` is C for symmetric ones, and (C₁, C₂) for any others."""
    return (channels, channels) if isinstance(channels, int) else channels

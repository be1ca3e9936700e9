"""What every vector gives to a pool."""

from torch import Tensor, nn


class Vector(nn.Module):
    """A linear map of a symmetric matrix (B, C, C) to a vector (B, ``out_features``).

    Attributes:
        channels: C.
        out_features: the size of the vector.
        has_factored: whether there is a `factored` form, for the route "paper".
    """

    has_factored = False

    def __init__(self, channels: int, out_features: int) -> None:
        super().__init__()
        self.channels = channels
        self.out_features = out_features

    def forward(self, matrix: Tensor) -> Tensor:
        """Returns the vector of a matrix."""
        raise NotImplementedError

    def factored(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the vector of leftᵀ right, (B, N, C) each, by the literature's algorithm, location by location."""
        raise NotImplementedError

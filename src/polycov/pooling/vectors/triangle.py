"""The entries of a matrix as a vector: all of them, or the upper triangle."""

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.pooling.registry import register
from polycov.pooling.vectors.base import Channels, Vector, sides_of
from polycov.pooling.vectors.buckets import BucketMap, root_two


def upper_triangle(channels: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Returns the indices of the upper triangle in a flattened matrix, row by row, and which are off the diagonal.

    Example:
        >>> upper_triangle(2)
        (tensor([0, 1, 3]), tensor([False,  True, False]))
    """
    rows, columns = torch.triu_indices(channels, channels, device=device)
    return rows * channels + columns, rows != columns


def triu(matrix: Tensor) -> Tensor:
    """Returns the upper triangle row by row, with off-diagonal entries times √2.

    It preserves inner products: ⟨A, B⟩ = ⟨triu A, triu B⟩ for symmetric A and B.

    Args:
        matrix: symmetric, (B, C, C).

    Returns:
        (B, C(C+1)/2).

    Example:
        >>> triu(torch.tensor([[[1.0, 2.0], [2.0, 3.0]]]))
        tensor([[1.0000, 2.8284, 3.0000]])
    """
    entries, off = upper_triangle(matrix.shape[-1], matrix.device)
    return matrix.flatten(1)[:, entries] * root_two(off, matrix.dtype)


@register("vector", "triu")
class Triangle(BucketMap):
    """The upper triangle with off-diagonal entries times √2: see `polycov.functional.triu`.

    Each entry of the triangle has its own bucket.
    """

    def __init__(self, channels: Channels) -> None:
        if not isinstance(channels, int):
            raise PolycovError(
                f"triu is the triangle of a symmetric matrix, but a cross moment, here {channels[0]}×{channels[1]}, is "
                "not. Use flatten, or a sketch."
            )
        super().__init__(channels, channels * (channels + 1) // 2)
        self.build()
        self.to(torch.get_default_device())

    def assign_buckets(self, device: torch.device) -> tuple[Tensor, Tensor]:
        entries, _ = upper_triangle(self.sides[0], device)
        bucket = torch.full((self.sides[0] ** 2,), self.out_features, device=device)
        bucket[entries] = torch.arange(self.out_features, device=device)
        return bucket, torch.ones_like(bucket)


@register("vector", "flatten")
class Flatten(Vector):
    """All entries, row by row."""

    def __init__(self, channels: Channels) -> None:
        rows, columns = sides_of(channels)
        super().__init__(channels, rows * columns)

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix.flatten(1)

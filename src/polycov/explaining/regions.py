"""The grid of locations of a map, and their sums over regions, so that pairs of regions stay few enough to look at."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def grid_of(features: Tensor) -> tuple[int, int]:
    """Returns the height and width of local features, maps (B, C, H, W) or tokens (B, N, C) of a square image.

    Example:
        >>> grid_of(torch.zeros(1, 9, 2)), grid_of(torch.zeros(1, 2, 3, 4))
        ((3, 3), (3, 4))
    """
    if features.ndim == 4:
        return features.shape[2], features.shape[3]
    side = math.isqrt(features.shape[1])
    return (side, side) if side**2 == features.shape[1] else (1, features.shape[1])


@dataclass(frozen=True)
class RegionGrid:
    """A map of ``height`` × ``width`` locations in at most ``most`` × ``most`` regions; few locations stay single.

    Example:
        >>> grid = RegionGrid(28, 10)
        >>> grid.rows, grid.columns
        (14, 10)
        >>> grid.sum(torch.ones(280), 0)[:3]
        tensor([2., 2., 2.])
    """

    height: int
    width: int
    most: int = 16

    @property
    def rows(self) -> int:
        """Regions from top to bottom."""
        return _regions(self.height, self.most)

    @property
    def columns(self) -> int:
        """Regions from left to right."""
        return _regions(self.width, self.most)

    @property
    def count(self) -> int:
        """The number of regions."""
        return self.rows * self.columns

    def index(self) -> Tensor:
        """Returns the region of each location, (height · width,)."""
        down = torch.arange(self.height) * self.rows // self.height
        across = torch.arange(self.width) * self.columns // self.width
        return (down[:, None] * self.columns + across).flatten()

    def sum(self, values: Tensor, dim: int) -> Tensor:
        """Returns the sums of values over the locations of each region; ``dim`` is that of the locations."""
        shape = list(values.shape)
        shape[dim] = self.count
        return values.new_zeros(shape).index_add_(dim, self.index().to(values.device), values)


def _regions(locations: int, most: int) -> int:
    """As many regions of one size as there may be."""
    return -(-locations // -(-locations // most))

"""Locations of a map summed into a grid of regions, so that pairs of regions stay few enough to look at."""

from dataclasses import dataclass

import torch
from torch import Tensor


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

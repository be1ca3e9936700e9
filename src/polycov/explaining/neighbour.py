"""A training image that is similar to an image in the pooled feature, and what the two share.

The similarity is the cosine of the angle between pooled features. As features are sums over regions, so is it: a sum
over pairs of regions, one of each image.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

Region = tuple[int, int]  # row and column


@dataclass(frozen=True)
class Shares:
    """What each region of an image contributes to its feature of length 1.

    Attributes:
        vectors: they add up to the feature, (regions, D).
        grid: of the regions, rows and columns.
    """

    vectors: Tensor
    grid: tuple[int, int]


@dataclass(frozen=True)
class Neighbour:
    """A training image that is similar to an image. What the two share is computed on demand.

    Attributes:
        name: of the training image.
        label: its class.
        image: as the network sees it, (3, H, W), values from 0 to 1.
        similarity: the cosine of the angle between the pooled features.
    """

    name: str
    label: str
    image: Tensor
    similarity: float
    _shares: tuple[Callable[[], Shares], Callable[[], Shares]] = field(repr=False)

    @property
    def grid(self) -> tuple[int, int]:
        """The regions of either image, rows and columns."""
        return self._shares[0]().grid

    @cached_property
    def pairs(self) -> Tensor:
        """What each region of the image (rows) and each of the training image (columns) contribute together.

        They add up to the similarity, (regions, regions).
        """
        image, training_image = (shares().vectors for shares in self._shares)
        return image @ training_image.mT

    @property
    def regions(self) -> Tensor:
        """What each region of the image contributes to the similarity, (rows, columns)."""
        return self.pairs.sum(1).reshape(self.grid)

    @property
    def strongest(self) -> tuple[Region, Region]:
        """The region of the image and that of the training image that contribute most together."""
        one, other = divmod(int(self.pairs.argmax()), self.pairs.shape[1])
        return divmod(one, self.grid[1]), divmod(other, self.grid[1])

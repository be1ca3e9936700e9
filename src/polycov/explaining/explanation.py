"""The explanation of one image: contributions of its regions to a score, which they add up to."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polycov.system.tables import Table

EXACT = "The contributions add up to the score exactly."
FIXED = "The contributions add up to the score exactly, with the factors of {stages} held fixed at this image."


@dataclass(frozen=True)
class ChannelPair:
    """Two channels before the pool, and what their covariance contributes."""

    first: int
    second: int
    contribution: float


@dataclass(frozen=True)
class Explanation:
    """Why an image has its score for a class, or for one class against another.

    Attributes:
        name: name of the image.
        image: as the network sees it, (3, H, W), values from 0 to 1.
        probabilities: the most probable classes with their probabilities.
        target: the class that is explained.
        against: the class it is compared with; None for none.
        score: logit of the target, less that of the other class.
        constant: the part of the score that belongs to no region.
        regions: contribution of each location, (height, width); with ``constant`` they add up to the score.
        channel_pairs: those that contribute most, in either direction.
        note: in which sense the contributions are exact.
    """

    name: str
    image: Tensor
    probabilities: list[tuple[str, float]]
    target: str
    against: str | None
    score: float
    constant: float
    regions: Tensor
    channel_pairs: list[ChannelPair]
    note: str
    _pairs: Callable[[], Tensor] = field(repr=False)

    @property
    def pairs(self) -> Tensor:
        """Contribution of each pair of locations, (N, N), symmetric, computed on demand; rows add up to ``regions``."""
        return self._pairs()

    @property
    def question(self) -> str:
        """What is explained, in words."""
        return f"Why {self.target}" + (f" and not {self.against}?" if self.against else "?")

    def partners(self, row: int, column: int) -> Tensor:
        """Returns how a region works together with every other, (height, width): one row of ``pairs``."""
        height, width = self.regions.shape
        return self.pairs[row * width + column].reshape(height, width)

    def heat(self, height: int | None = None, width: int | None = None) -> Tensor:
        """Returns ``regions`` enlarged to the image (or another size), (H, W), for an overlay."""
        size = (height or self.image.shape[1], width or self.image.shape[2])
        maps = self.regions[None, None].float()
        return torch.nn.functional.interpolate(maps, size=size, mode="bicubic", align_corners=False)[0, 0]

    def table(self) -> Table:
        """Returns the channel pairs that contribute most."""
        rows = [(pair.first, pair.second, f"{pair.contribution:+.3f}") for pair in self.channel_pairs]
        return Table(("channel", "channel", "contribution"), rows, self.question)

    def __str__(self) -> str:
        others = ", ".join(f"{name} {probability:.0%}" for name, probability in self.probabilities[:3])
        return (
            f"{self.name}: {others}. {self.question} Score {self.score:+.2f}, of which {self.constant:+.2f} constant."
        )

"""The options of `polycov.explaining.faithfulness`, which a command line can show with torch alone."""

from dataclasses import dataclass

import torch

from polycov.errors import PolycovError, known
from polycov.explaining.curves import step_counts
from polycov.explaining.hiding import Hide, replacement

CAMS = ("grad-cam", "grad-cam-reduced", "grad-cam-block", "hires-cam")
MAPS = ("exact", "exact-runner-up", *CAMS, "random", "untrained")


@dataclass(frozen=True)
class FaithfulnessOptions:
    """How to measure whether maps mean something."""

    images: int = 200
    """Number of images, chosen by the seed; all if there are fewer."""
    maps: tuple[str, ...] = ("exact", "grad-cam", "grad-cam-block", "hires-cam", "random", "untrained")
    """exact: contributions to the predicted class. exact-runner-up: to its lead over the runner-up. grad-cam: on the
    features before the reduction. grad-cam-reduced: on those after it. grad-cam-block: on the last block before them
    where Grad-CAM is not empty. hires-cam: gradient times feature. random: random orders. untrained: contributions to
    a classifier with random weights on the same features, another for each image."""
    step: float = 0.125
    """Share of the area that is hidden per step."""
    hide: Hide = "blur"
    """What hidden regions show: the image blurred, or its mean colour."""
    orders: int = 2
    """Number of random orders per image."""
    seed: int = 0
    """Of the choice of images and of everything random."""
    batch_size: int = 4
    """Images per batch; on a CPU small batches are faster."""

    def check(self) -> "FaithfulnessOptions":
        """Returns the options.

        Raises:
            PolycovError: if one is out of range.
        """
        for name in ("images", "orders", "batch_size"):
            if getattr(self, name) < 1:
                raise PolycovError(f"Expected {name} to be at least 1, got {getattr(self, name)}.")
        for name in self.maps:
            if name not in MAPS:
                raise PolycovError(f"Unknown map {name!r}. {known(name, MAPS)}")
        step_counts(1, self.step)
        replacement(torch.zeros(3, 1, 1), self.hide)
        return self

    def keyed_maps(self) -> list[tuple[str, int]]:
        """Returns the maps to measure, each with its seeds, from 0."""
        return [(name, seed) for name in self.maps for seed in range(self.orders if name == "random" else 1)]

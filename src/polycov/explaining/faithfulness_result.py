"""The result of hiding regions: curves, the areas under them, and differences between maps."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from polycov.explaining.curves import area_under
from polycov.explaining.intervals import Array, Interval, bootstrap
from polycov.system.tables import Table

Kind = Literal["deletion", "insertion"]
KINDS: tuple[Kind, ...] = ("deletion", "insertion")
Score = Literal["probability", "margin"]
SCORES: tuple[Score, ...] = ("probability", "margin")


@dataclass(frozen=True)
class CurveRecord:
    """The curves of one image in the order of one map.

    Attributes:
        settings: digest of the settings.
        image: its name.
        map: the name of the map.
        seed: of a random order or an untrained classifier.
        label: the true class.
        predicted: the class whose score is measured.
        counts: cells hidden or shown at each step.
        deletion: probability and margin at each step.
        insertion: probability and margin at each step.
        inside: share of the positive evidence inside the box; None without one.
        area: share of the image inside the box.
    """

    settings: str
    image: str
    map: str
    seed: int
    label: int
    predicted: int
    counts: list[int]
    deletion: list[list[float]]
    insertion: list[list[float]]
    inside: float | None = None
    area: float | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Image, map, seed."""
        return self.image, self.map, self.seed

    def curve(self, kind: Kind, score: Score) -> list[float]:
        """Returns one curve."""
        return (self.deletion if kind == "deletion" else self.insertion)[SCORES.index(score)]


@dataclass(frozen=True)
class Faithfulness:
    """Curves of many images by several maps.

    Attributes:
        records: one per image, map and seed.
    """

    records: Sequence[CurveRecord]

    @cached_property
    def maps(self) -> list[str]:
        """The names of the maps."""
        return list(dict.fromkeys(record.map for record in self.records))

    @cached_property
    def images(self) -> list[str]:
        """The names of the images."""
        return list(dict.fromkeys(record.image for record in self.records))

    @cached_property
    def accuracy(self) -> float:
        """The share of the images that are classified correctly."""
        correct = {record.image: record.predicted == record.label for record in self.records}
        return sum(correct.values()) / len(correct)

    @property
    def fractions(self) -> list[float]:
        """The share of the area hidden or shown at each step."""
        counts = self.records[0].counts
        return [count / counts[-1] for count in counts]

    def _values(self, name: str, kind: Kind, score: Score) -> Array:
        """The curves of a map, (images, steps), means over its seeds."""
        groups: dict[str, list[list[float]]] = {image: [] for image in self.images}
        for record in self.records:
            if record.map == name:
                groups[record.image].append(record.curve(kind, score))
        return np.array([np.mean(curves, axis=0) for curves in groups.values()])

    def _areas(self, name: str, kind: Kind, score: Score) -> Array:
        values = torch.from_numpy(self._values(name, kind, score))
        return np.asarray(area_under(values.mT, self.records[0].counts))

    def curve(self, name: str, kind: Kind, score: Score = "probability") -> list[Interval]:
        """Returns the mean curve of a map, with an interval at each step."""
        return bootstrap(self._values(name, kind, score))

    def area(self, name: str, kind: Kind, score: Score = "probability") -> Interval:
        """Returns the mean area under the curves of a map."""
        return bootstrap(self._areas(name, kind, score)[:, None])[0]

    def difference(self, one: str, other: str, kind: Kind, score: Score = "probability") -> Interval:
        """Returns the mean difference of the areas of two maps, paired by image."""
        gap = self._areas(one, kind, score) - self._areas(other, kind, score)
        return bootstrap(gap[:, None])[0]

    def passes(self, name: str, score: Score = "probability", against: str = "random") -> bool:
        """Whether hiding a map's regions lowers the score more than another's, and showing them raises it more.

        Both 95 % intervals have to exclude 0.
        """
        lower = self.difference(name, against, "deletion", score).high < 0
        return lower and self.difference(name, against, "insertion", score).low > 0

    def inside(self, name: str) -> tuple[Interval, Interval] | None:
        """Returns the share of a map's positive evidence inside the boxes, and the share less that of the area.

        None if no image has a box.
        """
        pairs = [(r.inside, r.area) for r in self.records if r.map == name]
        values = np.array([(a, a - b) for a, b in pairs if a is not None and b is not None])
        if not len(values):
            return None
        share, gain = bootstrap(values)
        return share, gain

    def table(self, score: Score = "probability") -> Table:
        """Returns the areas of all maps, with their differences to random orders and to the exact map."""
        rows = []
        for name in self.maps:
            cells = [name]
            for kind in KINDS:
                cells.append(str(self.area(name, kind, score)))
                for other in ("random", "exact"):
                    known = other in self.maps and other != name
                    cells.append(str(self.difference(name, other, kind, score)) if known else "")
            rows.append(cells)
        columns = [f"{kind}{suffix}" for kind in KINDS for suffix in ("", " − random", " − exact")]
        title = f"area under the curves of the {score}, {len(self.images)} images"
        return Table(["map", *columns], rows, title)

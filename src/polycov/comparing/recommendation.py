"""Which feature to use: the smallest that is not measurably below the best, on validation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polycov.comparing.grid import AVERAGE_LAST, Setting
from polycov.comparing.records import Record
from polycov.comparing.statistics import Difference, Point, Scored, by_point, method_title, paired_val
from polycov.pooling.methods import is_first_order

WIDE = 0.05  # an interval that reaches further says little


@dataclass(frozen=True)
class Recommendation:
    """The smallest feature that is not measurably below the best, on validation.

    Attributes:
        best: the point with the highest validation accuracy.
        chosen: the smallest that is not measurably below it.
        gap: the best less the chosen, on validation.
        images: distinct validation images, or episodes, over all seeds.
        smaller: how many smaller features were compared.
        compared: how many features were compared.
        score: what the accuracy is called.
        unit: what is judged.
    """

    best: Point
    chosen: Point
    gap: Difference
    images: int
    smaller: int
    compared: int
    score: str = "accuracy"
    unit: str = "images"

    def __str__(self) -> str:
        """In words, with the test accuracies, which played no part in the choice."""
        chosen, best, unit = self.chosen, self.best, self.unit
        text = "Use"
        if self.possible_loss > WIDE and self.compared > 1:
            text = (
                f"Too few {unit} to be sure: the {self.images} validation {unit} of all seeds cannot rule out a loss "
                f"of {100 * self.possible_loss:.0f} points. Add {unit} or seeds. Until then, use"
            )
        text += (
            f" {method_title(chosen.method)} with {chosen.dimensions} dimensions "
            f"({size_in_words(chosen.bytes)} per image): {self._score(chosen)}. "
        )
        if chosen.val == best.val:
            below = "everything smaller is measurably worse" if self.smaller else "nothing smaller was compared"
            text += f"Nothing is better on the {self.images} validation {unit} of all seeds, and {below}."
        else:
            text += self._trade()
        return text

    def _score(self, point: Point) -> str:
        """The score on the test images, in words."""
        score = "" if self.score == "accuracy" else f"{self.score} of "
        return f"{score}{point.test:.1%} on the test {self.unit}"

    def _trade(self) -> str:
        chosen, best = self.chosen, self.best
        gap, low, high = (round(100 * value, 1) + 0.0 for value in (self.gap.mean, self.gap.low, self.gap.high))
        return (
            f"The best on validation is {best.label} ({self._score(best)}), but on the {self.images} "
            f"validation {self.unit} of all seeds the difference, {gap:.1f} points (95 %: {low:.1f} to {high:.1f}), is "
            f"not measurable, and it is {best.bytes / chosen.bytes:.1f} times the size."
        )

    def train_flags(self) -> list[str]:
        """Returns the options of `polycov train` for this feature."""
        method, dim = Setting(*self.chosen.key, seed=0).pool
        words = ["--pool", method, *([] if dim is None else ["--dim", str(dim)])]
        if self.chosen.method == AVERAGE_LAST:
            return [*words, "--stage", "last"]
        return words if is_first_order(method, dim=dim) else [*words, "--channels", str(self.chosen.channels)]

    @property
    def possible_loss(self) -> float:
        """How far below the best feature the chosen one may be: the end of the interval, at least 3 / images.

        If no image tells two features apart, the interval is empty; that it happens to fewer than 3 / n of all images
        is then all that n images can show (with 95 % confidence).
        """
        return max(self.gap.high, min(3 / self.images, 1.0))


def recommend(
    records: Sequence[Record],
    points: Sequence[Point],
    scored: Mapping[int, Scored],
    score: str = "accuracy",
    unit: str = "images",
) -> Recommendation | None:
    """Returns the recommendation of a comparison; None if its settings share no images.

    Everything is chosen on validation images; test accuracies are only reported.
    """
    groups = by_point(records)
    best = max(points, key=lambda point: point.val)
    for point in sorted(points, key=lambda point: (point.bytes, -point.val)):
        paired = paired_val(groups[best.key], groups[point.key], scored)
        if paired is not None and (point == best or paired[0].at_least <= 0):  # is it below? a one-sided question
            smaller = sum(other.bytes < point.bytes for other in points)
            return Recommendation(best, point, *paired, smaller, len(points), score, unit)
    return None


def size_in_words(count: int) -> str:
    """Returns a number of bytes in words.

    Example:
        >>> size_in_words(2048), size_in_words(500)
        ('2 KB', '500 bytes')
    """
    if count < 1024:
        return f"{count} bytes"
    return f"{count / 1024:.3g} KB" if count < 1024**2 else f"{count / 1024**2:.3g} MB"

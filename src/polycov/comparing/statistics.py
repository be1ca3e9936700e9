"""What the records of a comparison say: means with errors, paired differences, a recommendation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polycov.comparing.grid import FEWER, METHODS
from polycov.comparing.measure import STORED, unpack

Record = dict[str, Any]
Array = np.ndarray[Any, Any]
RESAMPLES = 2000
UNCOMPRESSED = "isqrt-cov"
WIDE = 0.05  # an interval that reaches further says little


@dataclass(frozen=True)
class Point:
    """A method at a size, over its seeds.

    Attributes:
        method: name.
        dim: asked for; None where the method has its own.
        dimensions: of the feature.
        channels: before the pool.
        bytes: of a feature in float32.
        seeds: how many.
        test: mean test accuracy.
        test_error: its standard error over seeds; NaN for one seed.
        val: mean validation accuracy.
        val_error: its standard error.
        pool_ms: median time of pooling a picture; None where it was not measured.
        kernel_error: root mean square over seeds; None where there is nothing to compare with.
        float16: mean change of the test accuracy when test features are stored as float16; None if not measured.
        int8: the same as int8.
    """

    method: str
    dim: int | None
    dimensions: int
    channels: int
    bytes: int
    seeds: int
    test: float
    test_error: float
    val: float
    val_error: float
    pool_ms: float | None
    kernel_error: float | None
    float16: float | None = None
    int8: float | None = None

    @property
    def label(self) -> str:
        """Method and size in words."""
        return f"{method_title(self.method)}, {self.dimensions} dimensions"


def standard_error(values: Sequence[float]) -> float:
    """Returns the standard error of a mean; NaN for a single value.

    Example:
        >>> standard_error([1.0, 2.0, 3.0])
        0.5773502691896258
    """
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def by_setting(records: Sequence[Record]) -> dict[tuple[str, int | None], list[Record]]:
    """Returns the records of each method and dimension, by seed."""
    groups: dict[tuple[str, int | None], list[Record]] = {}
    for row in sorted(records, key=lambda row: row["seed"]):
        groups.setdefault((row["method"], row["dim"]), []).append(row)
    return groups


def points(records: Sequence[Record]) -> list[Point]:
    """Returns a point for each method and dimension: methods in the usual order, then specs, each by size."""
    order = list(dict.fromkeys([*METHODS, *sorted(row["method"] for row in records)]))
    made = []
    for (method, dim), rows in by_setting(records).items():
        test, val = ([row[f"{part}_accuracy"] for row in rows] for part in ("test", "val"))
        times = [row["pool_ms"] for row in rows if row.get("pool_ms") is not None]
        errors = [row["kernel_error"] ** 2 for row in rows if row.get("kernel_error") is not None]
        first = rows[0]
        made.append(
            Point(
                method,
                dim,
                first["dimensions"],
                first["channels"],
                first["bytes"],
                len(rows),
                float(np.mean(test)),
                standard_error(test),
                float(np.mean(val)),
                standard_error(val),
                float(np.median(times)) if times else None,
                math.sqrt(np.mean(errors)) if errors else None,
                *(_change(rows, dtype) for dtype in STORED),
            )
        )
    return sorted(made, key=lambda point: (order.index(point.method), point.dimensions))


def _change(rows: Sequence[Record], dtype: str) -> float | None:
    """The mean change of the test accuracy when features are stored in a dtype."""
    gaps = [row["stored"][dtype] - row["test_accuracy"] for row in rows if "stored" in row]
    return float(np.mean(gaps)) if gaps else None


def storing_in_words(found: Sequence[Point]) -> str:
    """Returns what storing features in fewer bytes costs, over all settings; empty if it was not measured."""
    parts = []
    for dtype, share in zip(STORED, ("half", "a quarter of"), strict=True):
        changes = [value for point in found if (value := getattr(point, dtype)) is not None]
        if not changes:
            return ""
        low, mean, high = (round(100 * float(f(changes)), 2) + 0.0 for f in (np.min, np.mean, np.max))  # 0 has no minus
        parts.append(f"{share} the bytes as {dtype}: {mean:+.2f} points on average ({low:+.2f} to {high:+.2f})")
    return f"What storing the features in fewer bytes does to the test accuracy: {'; '.join(parts)}."


@dataclass(frozen=True)
class Difference:
    """A paired difference of accuracies, with its 95 % interval and p-value by bootstrap.

    Attributes:
        mean: of one less the other.
        low: end of the interval.
        high: end of the interval.
        p: of there being no difference, two-sided.
        at_least: with 95 % certainty (one-sided).
    """

    mean: float
    low: float
    high: float
    p: float
    at_least: float

    @property
    def measurable(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def _right(rows: Sequence[Record], part: str, count: int) -> Array:
    """Which pictures are right, (seeds, pictures)."""
    return np.stack([unpack(row[f"{part}_right"], count) for row in rows]).astype(float)


def paired_test(one: Sequence[Record], other: Sequence[Record], count: int, seed: int = 0) -> Difference | None:
    """Returns the difference of two settings on the same test pictures, over the seeds that both have; None if none.

    Pictures and seeds are both drawn anew in each resample, each seed for both settings together, since both have its
    split and its sketch. So the interval holds for other pictures and other seeds; of one seed, for pictures alone.
    """
    a, b = ({row["seed"]: row for row in rows} for rows in (one, other))
    common = sorted(a.keys() & b.keys())
    if not common:
        return None
    gap = _right([a[s] for s in common], "test", count) - _right([b[s] for s in common], "test", count)
    chance = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        weights = chance.multinomial(count, np.full(count, 1 / count)) / count
        means[i] = gap[chance.integers(len(gap), size=len(gap))].mean(0) @ weights
    return _difference(float(gap.mean()), means)


def paired_val(
    one: Sequence[Record], other: Sequence[Record], splits: dict[int, list[int]], seed: int = 0
) -> tuple[Difference, int] | None:
    """Returns the difference of two settings on the validation pictures of the seeds that both have, and the number of
    these pictures; None if they have no seed in common.

    A picture that several seeds hold out counts once, with its mean; pictures are drawn anew in each resample.
    """
    a, b = ({row["seed"]: row for row in rows} for rows in (one, other))
    sums: dict[int, list[float]] = {}
    for number in sorted(a.keys() & b.keys()):
        pictures = splits[number]
        gap = _right([a[number]], "val", len(pictures))[0] - _right([b[number]], "val", len(pictures))[0]
        for picture, value in zip(pictures, gap, strict=True):
            sums.setdefault(picture, []).append(float(value))
    if not sums:
        return None
    values = np.array([np.mean(list_) for list_ in sums.values()])
    chance = np.random.default_rng(seed)
    weights = chance.multinomial(len(values), np.full(len(values), 1 / len(values)), size=RESAMPLES) / len(values)
    return _difference(float(values.mean()), weights @ values), len(values)


def _difference(mean: float, resampled: Array) -> Difference:
    low, at_least, high = (float(q) for q in np.quantile(resampled, [0.025, 0.05, 0.975]))
    p = 2 * min(float((resampled <= 0).mean()), float((resampled >= 0).mean()))
    return Difference(mean, low, high, min(max(p, 1 / RESAMPLES), 1.0), at_least)


@dataclass(frozen=True)
class Recommendation:
    """The smallest feature that is not measurably below the best, on validation.

    Attributes:
        best: the point of the highest validation accuracy.
        chosen: the smallest that is not measurably below it.
        gap: the best less the chosen, on validation.
        pictures: different validation pictures, over all seeds.
        smaller: how many smaller features were compared.
    """

    best: Point
    chosen: Point
    gap: Difference
    pictures: int
    smaller: int

    def words(self) -> str:
        """Returns it in words, with the test accuracies that played no part in it."""
        chosen, best = self.chosen, self.best
        text = (
            f"Use {method_title(chosen.method)} with {chosen.dimensions} dimensions "
            f"({size_in_words(chosen.bytes)} a picture): {chosen.test:.1%} on the test pictures. "
        )
        if chosen == best:
            below = "everything smaller is measurably below it" if self.smaller else "nothing smaller was compared"
            return text + f"It is the best on validation, and {below}."
        gap, low, high = (round(100 * value, 1) + 0.0 for value in (self.gap.mean, self.gap.low, self.gap.high))
        text += (
            f"The best on validation is {best.label} ({best.test:.1%} on the test), but on the {self.pictures} "
            f"validation pictures the difference, {gap:.1f} points (95 %: {low:.1f} to {high:.1f}), cannot be told "
            f"from none, and it is {best.bytes / chosen.bytes:.1f} times the size."
        )
        if self.gap.high > WIDE:
            text += f" So few pictures cannot rule out a loss of {high:.0f} points: use more seeds, or more pictures."
        return text


def size_in_words(count: int) -> str:
    """Returns a number of bytes in words.

    Example:
        >>> size_in_words(2048), size_in_words(500)
        ('2 KB', '500 bytes')
    """
    if count < 1024:
        return f"{count} bytes"
    return f"{count / 1024:.3g} KB" if count < 1024**2 else f"{count / 1024**2:.3g} MB"


def recommend(records: Sequence[Record], splits: dict[int, list[int]]) -> Recommendation | None:
    """Returns the recommendation of a comparison; None if pictures cannot be paired.

    Everything is chosen on validation pictures; the test accuracies are only reported.
    """
    groups = by_setting([row for row in records if row.get("val_right")])
    found = [point for point in points(records) if (point.method, point.dim) in groups]
    if not found:
        return None
    best = max(found, key=lambda point: point.val)
    for point in sorted(found, key=lambda point: (point.bytes, -point.val)):
        paired = paired_val(groups[best.method, best.dim], groups[point.method, point.dim], splits)
        if paired is not None and (point == best or paired[0].at_least <= 0):  # is it below? a one-sided question
            smaller = sum(other.bytes < point.bytes for other in found)
            return Recommendation(best, point, *paired, smaller)
    return None


def against_uncompressed(records: Sequence[Record], count: int) -> dict[tuple[str, int | None], Difference]:
    """Returns the test accuracy of each setting less that of uncompressed isqrt-cov, paired by picture."""
    groups = by_setting([row for row in records if row.get("test_right")])
    full = groups.get((UNCOMPRESSED, None))
    if full is None:
        return {}
    gaps = {key: paired_test(rows, full, count) for key, rows in groups.items() if key != (UNCOMPRESSED, None)}
    return {key: gap for key, gap in gaps.items() if gap is not None}


def method_title(method: str) -> str:
    """Returns the name of a method as a reader meets it."""
    return "isqrt-cov on fewer channels" if method == FEWER else method

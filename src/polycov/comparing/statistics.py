"""What the records of a comparison show: means with errors, and paired differences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polycov.comparing.grid import AVERAGE_LAST, FEWER_CHANNELS, METHODS
from polycov.comparing.records import FRACTIONS, Record, unpack

Array = np.ndarray[Any, Any]
PointKey = tuple[str, int | None]  # method, and the dimension asked for
Scored = dict[str, list[int]]  # for "val" and "test", the images or episodes in the order of their scores
RESAMPLES = 2000
UNCOMPRESSED = "isqrt-cov"


@dataclass(frozen=True)
class Point:
    """A method at one size, over its seeds.

    Attributes:
        method: name.
        dim: the dimension asked for; None where the method has its own.
        dimensions: number of dimensions of the feature.
        channels: number of channels before the pool.
        bytes: size of a feature in float32, in bytes.
        seeds: how many.
        test: mean test accuracy.
        test_error: its standard error over seeds; NaN for one seed.
        val: mean validation accuracy.
        val_error: its standard error.
        pool_ms: median milliseconds of pooling per image.
        kernel_error: root mean square over seeds; None where there is nothing to compare with.
        float16: mean change of the test accuracy when test features are stored as float16; None if not measured.
        int8: the same as int8.
        metrics: further results on the test images, by name: mean, and standard error over seeds.
        parameters: number of parameters of reduction, pool and classifier; None if not recorded.
        code: how features are stored.
        interval: half the 95 % interval of ``test`` over episodes; None where images are judged.
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
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    parameters: int | None = None
    interval: float | None = None
    code: str = "float32"

    @property
    def key(self) -> PointKey:
        """Method, and the dimension asked for."""
        return self.method, self.dim

    @property
    def label(self) -> str:
        """Method and size in words."""
        return f"{method_title(self.method)}, {self.dimensions} dimensions"


def method_title(method: str) -> str:
    """Returns the name of a method as a reader meets it."""
    titles = {FEWER_CHANNELS: "isqrt-cov on fewer channels", AVERAGE_LAST: "average of the last layer"}
    return titles.get(method, method)


def standard_error(values: Sequence[float]) -> float:
    """Returns the standard error of a mean; NaN for a single value.

    Example:
        >>> standard_error([1.0, 2.0, 3.0])
        0.5773502691896258
    """
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def by_point(records: Sequence[Record]) -> dict[PointKey, list[Record]]:
    """Returns the records of each method and dimension, by seed."""
    groups: dict[PointKey, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        groups.setdefault((record.method, record.dim), []).append(record)
    return groups


def points(records: Sequence[Record]) -> list[Point]:
    """Returns a point for each method and dimension: methods in the usual order, then specs, each by size."""
    order = list(dict.fromkeys([*METHODS, *sorted(record.method for record in records)]))
    result = [_point(key, group) for key, group in by_point(records).items()]
    return sorted(result, key=lambda point: (order.index(point.method), point.dimensions))


def _point(key: PointKey, records: Sequence[Record]) -> Point:
    measured = [record.measurement for record in records]
    test, val = [m.test_accuracy for m in measured], [m.val_accuracy for m in measured]
    errors = [m.kernel_error**2 for m in measured if m.kernel_error is not None]
    return Point(
        method=key[0],
        dim=key[1],
        dimensions=measured[0].dimensions,
        channels=measured[0].channels,
        bytes=measured[0].bytes,
        seeds=len(records),
        test=float(np.mean(test)),
        test_error=standard_error(test),
        val=float(np.mean(val)),
        val_error=standard_error(val),
        pool_ms=float(np.median([m.pool_ms for m in measured])),
        kernel_error=math.sqrt(np.mean(errors)) if errors else None,
        float16=_change(records, "float16"),
        int8=_change(records, "int8"),
        metrics=_metrics(records),
        parameters=measured[0].parameters,
        interval=_interval(records),
    )


def _metrics(records: Sequence[Record]) -> dict[str, tuple[float, float]]:
    """Mean and standard error of the metrics that all records have."""
    found = [record.measurement.metrics or {} for record in records]
    columns = {name: [metrics[name] for metrics in found] for name in found[0] if all(name in m for m in found)}
    return {name: (float(np.mean(values)), standard_error(values)) for name, values in columns.items()}


def _interval(records: Sequence[Record]) -> float | None:
    """Half the 95 % interval of the mean over the episodes of all seeds: 1.96 standard errors."""
    measured = [record.measurement for record in records]
    if not all(m.test_correct.startswith(FRACTIONS) for m in measured):
        return None
    return 1.96 * standard_error(np.concatenate([unpack(m.test_correct, m.test_images) for m in measured]).tolist())


def _change(records: Sequence[Record], dtype: str) -> float | None:
    """The mean change of the test accuracy when features are stored in a dtype."""
    measured = [record.measurement for record in records]
    gaps = [m.stored[dtype] - m.test_accuracy for m in measured if m.stored is not None]
    return float(np.mean(gaps)) if gaps else None


@dataclass(frozen=True)
class Difference:
    """A paired difference of accuracies, with its 95 % interval and p-value by bootstrap.

    Attributes:
        mean: mean of one less the other.
        low: end of the interval.
        high: end of the interval.
        p: p-value of no difference, two-sided.
        at_least: lower bound with 95 % confidence (one-sided).
    """

    mean: float
    low: float
    high: float
    p: float
    at_least: float

    @property
    def measurable(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def _gaps(one: Sequence[Record], other: Sequence[Record], scored: Mapping[int, Scored], split: str) -> Array | None:
    """The scores of one less the other, (seeds, images), NaN for the images a seed did not judge; None without a common
    seed.
    """
    a, b = ({record.seed: record for record in records} for records in (one, other))
    common = sorted(a.keys() & b.keys())
    if not common:
        return None
    images = sorted({image for seed in common for image in scored[seed][split]})
    column = {image: i for i, image in enumerate(images)}
    gaps = np.full((len(common), len(images)), np.nan)
    for row, seed in zip(gaps, common, strict=True):
        judged = scored[seed][split]
        row[[column[image] for image in judged]] = _scores(a[seed], split, judged) - _scores(b[seed], split, judged)
    return gaps


def _scores(record: Record, split: str, judged: Sequence[int]) -> Array:
    text = record.measurement.val_correct if split == "val" else record.measurement.test_correct
    return unpack(text, len(judged))


def paired_test(
    one: Sequence[Record], other: Sequence[Record], scored: Mapping[int, Scored], seed: int = 0
) -> Difference | None:
    """Returns the difference of two settings on the same test images, over their common seeds; None if there are none.

    Images and seeds are both resampled, each seed for both settings together, since both share its split and its
    sketch. So the interval holds for other images and other seeds; with one seed, for other images alone.
    """
    gaps = _gaps(one, other, scored, "test")
    if gaps is None:
        return None
    present, values = ~np.isnan(gaps), np.nan_to_num(gaps)
    complete = bool(present.all())
    rng = np.random.default_rng(seed)
    means, count = np.empty(RESAMPLES), gaps.shape[1]
    for i in range(RESAMPLES):
        weights = rng.multinomial(count, np.full(count, 1 / count)).astype(float)
        drawn = rng.integers(len(gaps), size=len(gaps))
        judged = count if complete else np.maximum(present @ weights, 1)
        means[i] = np.mean((values @ weights / judged)[drawn])
    return _difference(float(np.mean(np.nanmean(gaps, axis=1))), means)


def paired_val(
    one: Sequence[Record], other: Sequence[Record], scored: Mapping[int, Scored], seed: int = 0
) -> tuple[Difference, int] | None:
    """Returns the difference of two settings on the validation images of their common seeds, and the number of these
    images; None if they have no seed in common.

    An image held out by several seeds counts once, with its mean; images are resampled.
    """
    gaps = _gaps(one, other, scored, "val")
    if gaps is None:
        return None
    values = np.nanmean(gaps, axis=0)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=RESAMPLES) / len(values)
    return _difference(float(values.mean()), weights @ values), len(values)


def _difference(mean: float, resampled: Array) -> Difference:
    low, at_least, high = (float(q) for q in np.quantile(resampled, [0.025, 0.05, 0.975]))
    p = 2 * min(float((resampled <= 0).mean()), float((resampled >= 0).mean()))
    return Difference(mean, low, high, min(max(p, 1 / RESAMPLES), 1.0), at_least)


def against_uncompressed(records: Sequence[Record], scored: Mapping[int, Scored]) -> dict[PointKey, Difference]:
    """Returns the test accuracy of each setting less that of uncompressed isqrt-cov, paired by image."""
    groups = by_point(records)
    full = groups.get((UNCOMPRESSED, None))
    if full is None:
        return {}
    gaps = {key: paired_test(group, full, scored) for key, group in groups.items() if key != (UNCOMPRESSED, None)}
    return {key: gap for key, gap in gaps.items() if gap is not None}

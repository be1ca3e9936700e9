"""Means over images with 95 % intervals, by bootstrap."""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval.

    Attributes:
        mean: over images.
        low: end of the interval.
        high: end of the interval.
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def bootstrap(values: Array, seed: int = 0) -> list[Interval]:
    """Returns the mean of each column with its interval; rows, one per image, are resampled.

    Args:
        values: (images, columns).
        seed: of the resampling.

    Example:
        >>> bootstrap(np.array([[1.0], [1.0], [1.0]]))
        [Interval(mean=1.0, low=1.0, high=1.0)]
    """
    count = len(values)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES) / count
    low, high = np.quantile(weights @ values, [0.025, 0.975], axis=0)
    columns = zip(values.mean(0), low, high, strict=True)
    return [Interval(float(m), float(a), float(b)) for m, a, b in columns]

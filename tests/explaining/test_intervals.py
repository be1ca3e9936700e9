import numpy as np

from polycov.explaining.intervals import Interval, bootstrap


def test_intervals_are_those_of_the_normal_distribution() -> None:
    values = np.random.default_rng(0).normal([0.0, 2.0], [1.0, 0.5], (400, 2))
    for found, column in zip(bootstrap(values), values.T, strict=True):
        half = 1.96 * column.std() / 20
        np.testing.assert_allclose(
            [found.mean, found.low, found.high], column.mean() + np.array([0, -half, half]), atol=0.02
        )


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        (found,) = bootstrap(rng.normal(3.0, 1.0, (50, 1)))
        covered += found.low <= 3.0 <= found.high
    assert 178 <= covered <= 198  # 95 % of 200, less what a bootstrap of 50 misses


def test_they_read_well() -> None:
    assert str(Interval(0.1, 0.05, 0.15)) == "0.100 (0.050 to 0.150)"

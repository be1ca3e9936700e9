import pytest
from scipy import stats

from polycov.training.predictions import wilson_interval


@pytest.mark.parametrize(("successes", "count"), [(90, 100), (0, 7), (7, 7), (1, 3), (612, 1355)])
def test_the_interval_is_scipys(successes: int, count: int) -> None:
    expected = stats.binomtest(successes, count).proportion_ci(0.95, method="wilson")
    assert wilson_interval(successes, count) == pytest.approx((expected.low, expected.high), abs=1e-4)

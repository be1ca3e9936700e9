import itertools

import pytest
import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.explaining.curves import area_under, measure_curves, rank_cells, step_counts

VALUES = torch.tensor([0.0, 3.0, -1.0, 0.5])  # of four cells
ENDS = (VALUES.sum()[None], torch.zeros(1))
COUNTS = [0, 1, 2, 3, 4]


def scores(hidden: Tensor) -> Tensor:
    """The sum of the values of the visible cells."""
    return torch.where(hidden, 0.0, VALUES).sum(1, keepdim=True)


def areas(order: list[int]) -> tuple[float, float]:
    curves = measure_curves(torch.tensor(order), COUNTS, scores, ENDS)
    return tuple(float(area_under(curve, COUNTS)) for curve in (curves.deletion, curves.insertion))  # type: ignore[return-value]


def test_curves_follow_the_order() -> None:
    curves = measure_curves(torch.tensor([1, 3, 0, 2]), COUNTS, scores, ENDS)
    assert curves.deletion.flatten().tolist() == [2.5, -0.5, -1.0, -1.0, 0.0]
    assert curves.insertion.flatten().tolist() == [0.0, 3.0, 3.5, 3.5, 2.5]


def test_no_order_has_a_lower_deletion_or_a_higher_insertion_area_than_the_largest_first() -> None:
    best = rank_cells(VALUES, torch.Generator()).tolist()
    assert best == [1, 3, 0, 2]
    deletion, insertion = areas(best)
    for order in itertools.permutations(range(4)):
        other = areas(list(order))
        assert deletion <= other[0] + 1e-6
        assert insertion >= other[1] - 1e-6


def test_the_area_is_that_of_the_trapezoids() -> None:
    curve = torch.tensor([[1.0, 0.0], [0.5, 1.0], [0.0, 0.0]])
    torch.testing.assert_close(area_under(curve, [0, 1, 4]), torch.tensor([0.25 * 0.75 + 0.75 * 0.25, 0.5]))


def test_equal_cells_are_ranked_at_random() -> None:
    orders = {tuple(rank_cells(torch.zeros(6), torch.Generator().manual_seed(i)).tolist()) for i in range(5)}
    assert len(orders) > 1
    assert all(sorted(order) == list(range(6)) for order in orders)


def test_steps() -> None:
    assert step_counts(100, 0.125) == [0, 12, 25, 38, 50, 62, 75, 88, 100]
    assert step_counts(4, 0.1) == [0, 1, 2, 3, 4]
    assert step_counts(9, 1) == [0, 9]
    for step in (0, -0.1, 1.5):
        with pytest.raises(PolycovError, match="Expected a step above 0 and at most 1"):
            step_counts(9, step)

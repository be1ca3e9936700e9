import pytest
import torch

from polycov.explaining.regions import RegionGrid


@pytest.mark.parametrize(("locations", "regions"), [(1, 1), (10, 10), (16, 16), (17, 9), (20, 10), (28, 14), (56, 14)])
def test_few_locations_stay_single_and_many_are_summed(locations: int, regions: int) -> None:
    grid = RegionGrid(locations, 3)
    assert (grid.rows, grid.columns, grid.count) == (regions, 3, 3 * regions)
    sizes = grid.index().bincount(minlength=grid.count)
    assert int(sizes.min()) >= 1
    assert int(sizes.max()) - int(sizes.min()) <= 1


def test_sums_are_those_of_blocks_along_any_dimension() -> None:
    values = torch.randn(2, 28 * 20, 3)
    sums = RegionGrid(28, 20).sum(values, 1).reshape(2, 14, 10, 3)
    blocks = values.reshape(2, 14, 2, 10, 2, 3).sum((2, 4))
    torch.testing.assert_close(sums, blocks)

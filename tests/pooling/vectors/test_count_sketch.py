import pytest
import torch

from polycov.errors import PolycovError
from polycov.pooling.vectors.count_sketch import CountSketch


def test_the_buckets_are_equally_full() -> None:
    vector = CountSketch(16, 17)
    assert torch.bincount(vector.bucket)[:17].tolist() == [8] * 17  # 136 entries
    assert vector.table.shape == (8, 17)


def test_entries_below_the_diagonal_are_in_no_bucket() -> None:
    vector = CountSketch(4, 3)
    below = torch.ones(4, 4).tril(-1).bool().flatten()
    assert (vector.bucket[below] == 3).all()
    assert (vector.bucket[~below] < 3).all()


@pytest.mark.parametrize(("least", "size"), [(1, 36), (20, 36), (50, 50), (64, 64), (100, 64)])
def test_dimensions_that_would_be_0_are_left_out(least: int, size: int) -> None:
    x = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0))
    wide, narrow = CountSketch(8, 64, seed=3)(x + x.mT), CountSketch(8, 64, least=least, seed=3)(x + x.mT)
    assert narrow.shape == (2, size)
    assert torch.equal(narrow, wide[:, :size])
    assert not wide[:, 36:].any()


def test_fewer_dimensions_than_entries_are_left_as_they_are() -> None:
    matrix = torch.eye(16).unsqueeze(0)
    assert torch.equal(CountSketch(16, 64, least=8)(matrix), CountSketch(16, 64)(matrix))


def test_at_least_no_dimension_is_an_error() -> None:
    with pytest.raises(PolycovError, match="least"):
        CountSketch(8, 64, least=0)

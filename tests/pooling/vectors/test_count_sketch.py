import torch

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

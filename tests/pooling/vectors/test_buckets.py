import numpy as np
import pytest
import torch

from polycov import functional as F
from polycov.pooling.vectors.buckets import bucket_table


def entries() -> tuple[torch.Tensor, torch.Tensor]:
    """Entries (3, 500) and their buckets; 80 means none."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 500, generator=generator), torch.randint(81, (500,), generator=generator)


def test_bucket_sum_agrees_with_numpy_by_table_and_by_scatter() -> None:
    x, bucket = entries()
    table = bucket_table(bucket, 80)
    assert len(table) > 1
    by_scatter = F.bucket_sum(x, bucket, 80, table)
    by_table = torch.nn.functional.pad(x, (0, 1))[:, table].sum(1)
    expected = np.stack([np.bincount(bucket.numpy(), row, 81)[:80] for row in x.double().numpy()])
    np.testing.assert_allclose(by_scatter.numpy(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(by_table.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("buckets", "size"), [([0, 1, 1, 0, 2, 1], 3), ([3, 0, 2, 1], 4), ([1, 2, 0, 2], 2)])
def test_the_sum_is_the_same_if_it_is_known_how_many_entries_have_a_bucket(buckets: list[int], size: int) -> None:
    """Scattered without a spare place, gathered from a full table, and with an entry to skip."""
    x, bucket = torch.rand(2, len(buckets), dtype=torch.float64, requires_grad=True), torch.tensor(buckets)
    used = int((bucket < size).sum())
    assert torch.equal(F.bucket_sum(x, bucket, size, used=used), F.bucket_sum(x, bucket, size))
    assert torch.autograd.gradcheck(lambda x: F.bucket_sum(x, bucket, size, used=used) ** 2, x)
    assert torch.autograd.gradgradcheck(lambda x: F.bucket_sum(x, bucket, size, used=used) ** 2, x)


def test_bucket_sum_is_twice_differentiable() -> None:
    x, bucket = torch.rand(2, 6, dtype=torch.float64, requires_grad=True), torch.tensor([0, 2, 2, 1, 3, 0])
    assert torch.autograd.gradcheck(lambda x: F.bucket_sum(x, bucket, 3) ** 2, x)
    assert torch.autograd.gradgradcheck(lambda x: F.bucket_sum(x, bucket, 3) ** 2, x)


def test_an_empty_bucket_sums_to_zero() -> None:
    assert F.bucket_sum(torch.ones(1, 2), torch.tensor([0, 0]), 3).tolist() == [[2.0, 0.0, 0.0]]

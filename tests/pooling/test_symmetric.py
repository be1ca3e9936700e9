"""Products of symmetric matrices in blocks, against products of whole matrices."""

import pytest
import torch
from torch import Tensor

from polycov.pooling import symmetric
from polycov.pooling.symmetric import (
    add_to_diagonal,
    anticommutator,
    combine,
    cut,
    gram,
    join,
    joined_product,
    product,
    symmetric_product,
)

SIZES = (1, 5, 8, 11, 16)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "BLOCK", 4)


def random(size: int, seed: int = 0) -> Tensor:
    x = torch.randn(3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x + x.mT


@pytest.mark.parametrize("size", SIZES)
def test_blocks_are_cut_and_joined_without_change(size: int) -> None:
    x = random(size)
    assert cut(x).count == max(round(size / 4), 1)
    assert torch.equal(join(cut(x)), x)


@pytest.mark.parametrize("size", SIZES)
def test_only_the_symmetric_part_is_kept_if_asked(size: int) -> None:
    x = torch.arange(float(2 * size**2)).reshape(2, size, size)
    torch.testing.assert_close(join(cut(x, symmetrize=True)), (x + x.mT) / 2)


@pytest.mark.parametrize("size", SIZES)
def test_symmetric_products_are_those_of_whole_matrices(size: int) -> None:
    a, b = random(size), random(size, 1)
    torch.testing.assert_close(join(product(cut(a), cut(a @ a))), a @ a @ a)
    torch.testing.assert_close(join(product(cut(a), cut(a @ a), cut(b.clone()))), b + a @ a @ a)
    torch.testing.assert_close(join(product(cut(a), cut(a @ a), cut(b.clone()), factor=0.5)), b + 0.5 * a @ a @ a)
    torch.testing.assert_close(join(product(cut(a), cut(a @ a), cut(b), 3.0, 0.5)), 3 * b + 0.5 * a @ a @ a)
    torch.testing.assert_close(join(anticommutator(cut(a), cut(b))), a @ b + b @ a)
    torch.testing.assert_close(join(anticommutator(cut(a), cut(b), cut(a @ a), 3.0)), 3 * a @ a + a @ b + b @ a)


@pytest.mark.parametrize("size", SIZES)
def test_a_total_with_a_weight_is_left_as_it_is(size: int) -> None:
    a, b = random(size), random(size, 1)
    total = cut(b.clone())
    product(cut(a), cut(a), total, 1.0)
    anticommutator(cut(a), cut(a), total)
    assert torch.equal(join(total), b)


@pytest.mark.parametrize("size", SIZES)
def test_combinations_are_linear(size: int) -> None:
    a, b = random(size), random(size, 1)
    torch.testing.assert_close(join(combine(3.0, (2.0, cut(a)), (-1.0, cut(b)))), 3 * torch.eye(size) + 2 * a - b)
    torch.testing.assert_close(join(combine(0.0, (2.0, cut(a)))), 2 * a)


@pytest.mark.parametrize("size", SIZES)
def test_a_gram_matrix_is_that_of_all_rows(size: int) -> None:
    rows = torch.randn(2, 7, size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(gram(rows), torch.einsum("bni,bnj->bij", rows, rows))
    torch.testing.assert_close(gram(rows.mT), torch.einsum("bin,bjn->bij", rows, rows))


@pytest.mark.parametrize("block", [7, 40])
def test_a_product_entry_by_entry_is_that_of_the_whole_matrices(block: int) -> None:
    rows = torch.rand(2, 5, 30, dtype=torch.float64)
    inner = torch.rand(2, 5, 5, dtype=torch.float64)
    inner = inner + inner.mT
    first = add_to_diagonal(symmetric_product(inner @ rows, rows, block), torch.tensor([1.0, 2.0], dtype=torch.float64))
    second = cut(rows.mT @ rows, block=block)
    whole = rows.mT @ inner @ rows + torch.tensor([1.0, 2.0], dtype=torch.float64)[:, None, None] * torch.eye(30)
    torch.testing.assert_close(joined_product(first, second), whole * (rows.mT @ rows))

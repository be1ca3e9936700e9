"""Symmetric matrices in blocks: of a product that is symmetric, the blocks below the diagonal need not be computed."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from polycov.pooling.transforms import add_product

BLOCK = 128  # about the size of a block; on a CPU, products of this size are also the fastest per multiply-add


class Symmetric:
    """A batch of symmetric matrices, as the blocks on and above the diagonal.

    A product then takes (n + 1)/2n of its multiply-adds with n blocks in a row: 3/4 with two, 5/8 with four.

    Attributes:
        blocks: row by row, (B, rows, columns) each.
        count: n.
    """

    def __init__(self, blocks: Sequence[Tensor], count: int) -> None:
        self.blocks = list(blocks)
        self.count = count

    def at(self, row: int, column: int) -> Tensor:
        """Returns the block of a row and a column."""
        if row > column:
            return self.at(column, row).mT
        return self.blocks[row * self.count - row * (row + 1) // 2 + column]


def count_blocks(size: int, device: str, block: int | None = None) -> int:
    """Returns how many blocks in a row are fastest: one on GPUs and inside compilers, which prefer few large products.

    Example:
        >>> [count_blocks(size, "cpu") for size in (64, 128, 256, 512)], count_blocks(512, "cuda")
        ([1, 1, 2, 4], 1)
    """
    return max(round(size / (block or BLOCK)), 1) if device == "cpu" and not torch.compiler.is_compiling() else 1


def cut(matrix: Tensor, *, symmetrize: bool = False, block: int | None = None) -> Symmetric:
    """Cuts symmetric matrices, (B, C, C), into blocks of about a size; with ``symmetrize``, their symmetric part."""
    size = matrix.shape[-1]
    count = count_blocks(size, matrix.device.type, block)
    if count == 1:
        return Symmetric([0.5 * (matrix + matrix.mT) if symmetrize else matrix], 1)
    blocks = []
    for i, rows in enumerate(_ranges(size, count)):
        for columns in _ranges(size, count)[i:]:
            part = matrix.narrow(1, *rows).narrow(2, *columns)
            if symmetrize:
                part = 0.5 * (part + matrix.narrow(1, *columns).narrow(2, *rows).mT)
            blocks.append(part.contiguous())
    return Symmetric(blocks, count)


def _ranges(size: int, count: int) -> list[tuple[int, int]]:
    """The start and the length of each block."""
    ends = [size * i // count for i in range(count + 1)]
    return [(a, b - a) for a, b in pairwise(ends)]


def join(x: Symmetric) -> Tensor:
    """Returns the matrices, (B, C, C)."""
    if x.count == 1:
        return x.blocks[0]
    return torch.cat([torch.cat([x.at(i, j) for j in range(x.count)], 2) for i in range(x.count)], 1)


def symmetric_product(a: Tensor, b: Tensor, block: int | None = None) -> Symmetric:
    """Returns AᵀB, (B, N, C) both, provided that it is symmetric."""
    size = a.shape[-1]
    count = count_blocks(size, a.device.type, block)
    left, right = ([x.narrow(2, *columns) for columns in _ranges(size, count)] for x in (a, b))
    return Symmetric([torch.bmm(left[i].mT, right[j]) for i in range(count) for j in range(i, count)], count)


def gram(rows: Tensor) -> Tensor:
    """Returns XᵀX of rows X, (B, N, C) → (B, C, C)."""
    return join(symmetric_product(rows, rows))


def joined_product(a: Symmetric, b: Symmetric) -> Tensor:
    """Returns the matrices of A and B multiplied entry by entry, (B, C, C); without a gradient."""
    last = a.at(a.count - 1, a.count - 1)
    ranges = _ranges(sum(a.at(0, j).shape[-1] for j in range(a.count)), a.count)
    size = sum(ranges[-1])
    result = last.new_empty(len(last), size, size)
    for i, rows in enumerate(ranges):
        for j, columns in enumerate(ranges[i:], i):
            block = result.narrow(1, *rows).narrow(2, *columns)
            torch.mul(a.at(i, j), b.at(i, j), out=block)
            if j > i:
                result.narrow(1, *columns).narrow(2, *rows).copy_(block.mT)
    return result


def add_to_diagonal(x: Symmetric, constant: Tensor) -> Symmetric:
    """Returns X + constant · I with one constant per sample, (B,); X is overwritten."""
    for i in range(x.count):
        x.at(i, i).diagonal(dim1=1, dim2=2).add_(constant.unsqueeze(-1))
    return x


def product(a: Symmetric, b: Symmetric, total: Symmetric | None = None) -> Symmetric:
    """Returns A B, or total + A B if given, provided that it is symmetric; the total is overwritten."""
    n = range(a.count)
    return Symmetric([_entry(a, b, i, j, total) for i in n for j in n if i <= j], a.count)


def anticommutator(a: Symmetric, b: Symmetric) -> Symmetric:
    """Returns A B + B A, with one whole product, since B A = (A B)ᵀ."""
    n = range(a.count)
    whole = [[_entry(a, b, i, j) for j in n] for i in n]
    return Symmetric([whole[i][j] + whole[j][i].mT for i in n for j in n if i <= j], a.count)


def _entry(a: Symmetric, b: Symmetric, row: int, column: int, total: Symmetric | None = None) -> Tensor:
    """A block of A B, or of total + A B."""
    left, right = a.at(row, 0), b.at(0, column)
    block = torch.bmm(left, right) if total is None else add_product(total.at(row, column), left, right)
    for k in range(1, a.count):
        block = add_product(block, a.at(row, k), b.at(k, column))
    return block


def combine(constant: float, *terms: tuple[float, Symmetric]) -> Symmetric:
    """Returns ``constant · I + Σ coefficient · matrix`` over the terms, of which there is at least one."""
    (first, x), *rest = terms
    blocks = []
    for i in range(x.count):
        for j in range(i, x.count):
            block = x.at(i, j)
            block = first * block
            for coefficient, y in rest:
                block = torch.add(block, y.at(i, j), alpha=coefficient)
            if constant and i == j:
                block.diagonal(dim1=1, dim2=2).add_(constant)
            blocks.append(block)
    return Symmetric(blocks, x.count)

"""Symmetric matrices in blocks: of a product that is symmetric, the blocks below the diagonal need not be computed."""

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

    def __init__(self, blocks: list[Tensor], count: int) -> None:
        self.blocks = blocks
        self.count = count

    def place(self, row: int, column: int) -> int:
        """Returns the position of a block on or above the diagonal."""
        return row * self.count - row * (row + 1) // 2 + column

    def at(self, row: int, column: int) -> Tensor:
        """Returns the block of a row and a column."""
        return self.at(column, row).mT if row > column else self.blocks[self.place(row, column)]


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
    last = x.blocks[-1]
    ranges = _ranges(sum(x.at(0, j).shape[-1] for j in range(x.count)), x.count)
    result = last.new_empty(len(last), *[sum(ranges[-1])] * 2)
    for i, rows in enumerate(ranges):
        for j, columns in enumerate(ranges):
            result.narrow(1, *rows).narrow(2, *columns).copy_(x.at(i, j))
    return result


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


def add_to_diagonal(x: Symmetric, constant: Tensor | float) -> Symmetric:
    """Returns X + constant · I with one constant, or one per sample, (B,).

    X is overwritten, except inside compilers and transforms, which refuse to write to some diagonals.
    """
    each = constant[:, None, None] if isinstance(constant, Tensor) else constant
    for i in range(x.count):
        block = x.at(i, i)
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            eye = torch.eye(block.shape[-1], dtype=block.dtype, device=block.device)
            x.blocks[x.place(i, i)] = block + each * eye
        else:
            block.diagonal(dim1=1, dim2=2).unsqueeze(1).add_(each)
    return x


def product(
    a: Symmetric, b: Symmetric, total: Symmetric | None = None, weight: float | None = None, factor: float = 1.0
) -> Symmetric:
    """Returns A B, provided that it is symmetric; or total + factor · A B, in place of the total; or
    weight · total + factor · A B.
    """
    n = a.count
    return Symmetric([_entry(a, b, i, j, total, weight, factor) for i in range(n) for j in range(i, n)], n)


def anticommutator(a: Symmetric, b: Symmetric, total: Symmetric | None = None, weight: float = 1.0) -> Symmetric:
    """Returns A B + B A, or weight · total + A B + B A, with the multiply-adds of one whole product.

    A block on the diagonal is X + Xᵀ of X = weight/2 · total + A B; the others are sums of both products.
    """

    def entry(i: int, j: int) -> Tensor:
        if i == j:
            half = _entry(a, b, i, i, total, weight / 2)
            return half + half.mT
        return _add_products(_entry(a, b, i, j, total, weight), b, a, i, j, range(a.count))

    return Symmetric([entry(i, j) for i in range(a.count) for j in range(i, a.count)], a.count)


def _entry(
    a: Symmetric,
    b: Symmetric,
    row: int,
    column: int,
    total: Symmetric | None = None,
    weight: float | None = None,
    factor: float = 1.0,
) -> Tensor:
    """A block of A B, of total + factor · A B in place of the total, or of weight · total + factor · A B."""
    left, right = a.at(row, 0), b.at(0, column)
    if total is None:
        block = torch.bmm(left, right)
    elif weight is None:
        block = add_product(total.at(row, column), left, right, factor)
    else:
        block = torch.baddbmm(total.at(row, column), left, right, beta=weight, alpha=factor)
    return block if a.count == 1 else _add_products(block, a, b, row, column, range(1, a.count), factor)


def _add_products(
    block: Tensor, a: Symmetric, b: Symmetric, row: int, column: int, terms: range, factor: float = 1.0
) -> Tensor:
    """Adds these of the products that make up a block of A B, times a factor, in place."""
    for k in terms:
        block = add_product(block, a.at(row, k), b.at(k, column), factor)
    return block


def combine(constant: float, *terms: tuple[float, Symmetric]) -> Symmetric:
    """Returns ``constant · I + Σ coefficient · matrix`` over the terms, of which there is at least one."""
    (first, x), *rest = terms
    result = Symmetric([first * block for block in x.blocks], x.count)
    for coefficient, y in rest:
        pairs = zip(result.blocks, y.blocks, strict=True)
        result = Symmetric([torch.add(block, other, alpha=coefficient) for block, other in pairs], x.count)
    return add_to_diagonal(result, constant) if constant else result

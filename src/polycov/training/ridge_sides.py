"""The normal equations of a ridge regression, on the smaller side of the features, from blocks of rows.

With centred features X (n, D) and centred indicators of the classes T, weights are

    (XᵀX + sI)⁻¹ XᵀT  =  Xᵀ (XXᵀ + sI)⁻¹ T :

a system of D unknowns for many images, of n for few. Rows come in two parts, training and validation; equations of the
first part and of both follow from the same products, which are taken once.

Products of float32 rows are taken in float32 and added up in float64, if asked for. Their rounding errors are random
and about 1e-7 of the length of a row; what they mean for a solution is not known before, so `error` measures it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polycov.system.rows import BLOCK, Rows, read_blocks

COLUMNS = 256  # of a product at a time: of a symmetric one, half is enough


class Equations(NamedTuple):
    """(matrix + strength · unit · I) coefficients = targets.

    Attributes:
        matrix: (side, side), float64.
        targets: (side, classes), float64.
        unit: the mean squared length of a centred feature.
        mean: of the features, (D,).
        level: share of each class, (classes,).
        parts: how many parts of the rows they are of.
    """

    matrix: Tensor
    targets: Tensor
    unit: float
    mean: Tensor
    level: Tensor
    parts: int


class Side(ABC):
    """Products of rows on one side of the feature matrix.

    Args:
        parts: features, each (n, D).
        labels: of each part, (n,).
        classes: their number.
        exact: whether products of float32 rows are taken in float64.
    """

    def __init__(self, parts: Sequence[Rows], labels: Sequence[Tensor], classes: int, *, exact: bool) -> None:
        self.parts, self.labels, self.classes = parts, labels, classes
        first = parts[0][:BLOCK]
        self.dtype = torch.float64 if exact or first.dtype == torch.float64 else torch.float32
        self.centre = first.to(self.dtype).mean(0)  # near the mean, so that little is lost in what follows
        self.classes_of = [torch.bincount(of, minlength=classes) for of in labels]  # how many rows each class has

    def rows(self, parts: int | Sequence[Rows]) -> Iterator[Tensor]:
        """Yields the rows of some parts less the centre, in blocks."""
        chosen = self.parts[:parts] if isinstance(parts, int) else parts
        return (block.to(self.dtype) - self.centre for block in read_blocks(chosen))

    def level(self, parts: int) -> Tensor:
        """Returns the share of each class."""
        counts = torch.stack(self.classes_of[:parts]).sum(0).double()
        return counts / counts.sum()

    @abstractmethod
    def equations(self, parts: int) -> Equations:
        """Returns the equations of the rows of the first parts."""

    @abstractmethod
    def coordinates(self, equations: Equations, begin: int, end: int) -> Tensor:
        """Returns what coefficients are multiplied by for some rows of the second part, (end − begin, side)."""

    @abstractmethod
    def weight(self, equations: Equations, coefficients: Tensor) -> Tensor:
        """Returns the weights of a classifier, (D, classes)."""

    @abstractmethod
    def times(self, equations: Equations, vector: Tensor) -> Tensor:
        """Returns the product of the matrix and a vector (side,), computed from the rows in float64."""

    def error(self, equations: Equations, solution: Tensor, target: Tensor, strength: float) -> float:
        """Returns how far a solution is from one: the relative residual, (side,) each."""
        image = self.times(equations, solution) + strength * equations.unit * solution
        return float((target - image).norm() / target.norm())


class ScatterSide(Side):
    """Products of columns, (D, D): for many images."""

    def __init__(self, parts: Sequence[Rows], labels: Sequence[Tensor], classes: int, *, exact: bool) -> None:
        super().__init__(parts, labels, classes, exact=exact)
        width = parts[0].shape[1]
        self._sums = [torch.zeros(classes, width, dtype=torch.float64) for _ in parts]  # of each class
        self._products = [torch.zeros(width, width, dtype=torch.float64) for _ in parts]  # lower triangles
        for part, targets, sums, products in zip(parts, labels, self._sums, self._products, strict=True):
            for rows, label in zip(self.rows([part]), targets.split(BLOCK), strict=True):
                sums.index_add_(0, label, rows.double())
                for begin in range(0, width, COLUMNS):
                    products[begin:, begin : begin + COLUMNS] += rows[:, begin:].mT @ rows[:, begin : begin + COLUMNS]

    def equations(self, parts: int) -> Equations:
        """Returns the equations of the rows of the first parts."""
        count = sum(len(labels) for labels in self.labels[:parts])
        sums, matrix = sum(self._sums[1:parts], self._sums[0]), self._products[0].clone()
        for more in self._products[1:parts]:
            matrix += more
        mean = sums.sum(0) / count
        _mirror(matrix).addr_(mean, mean, alpha=-count)
        level = self.level(parts)
        targets = (sums - count * level[:, None] * mean).mT
        unit = float(matrix.diagonal().sum()) / count or 1.0
        return Equations(matrix, targets, unit, mean + self.centre, level, parts)

    def coordinates(self, equations: Equations, begin: int, end: int) -> Tensor:
        """Returns centred rows of the second part."""
        return self.parts[1][begin:end].double() - equations.mean

    def weight(self, equations: Equations, coefficients: Tensor) -> Tensor:
        """Returns the coefficients: they are of columns already."""
        return coefficients

    def times(self, equations: Equations, vector: Tensor) -> Tensor:
        """Returns the product of the scatter matrix and a vector."""
        mean = equations.mean
        blocks = (block.double() for block in read_blocks(self.parts[: equations.parts]))
        images = ((rows, rows @ vector - mean @ vector) for rows in blocks)
        return _total(rows.mT @ image - image.sum() * mean for rows, image in images)


class GramSide(Side):
    """Products of rows, (n, n): for few images."""

    def __init__(self, parts: Sequence[Rows], labels: Sequence[Tensor], classes: int, *, exact: bool) -> None:
        super().__init__(parts, labels, classes, exact=exact)
        count = sum(map(len, parts))
        self._sums = [_total(rows.sum(0, dtype=torch.float64) for rows in self.rows([part])) for part in parts]
        self._products, begin = torch.zeros(count, count, dtype=torch.float64), 0
        for rows in self.rows(len(parts)):
            end, start = begin + len(rows), 0
            for others in self.rows(len(parts)):
                block = self._products[begin:end, start : start + len(others)]
                for left, right in zip(rows.split(COLUMNS, 1), others.split(COLUMNS, 1), strict=True):
                    block += left @ right.mT
                self._products[start : start + len(others), begin:end] = block.mT
                start += len(others)
                if start >= end:
                    break  # the rest is symmetric
            begin = end

    def equations(self, parts: int) -> Equations:
        """Returns the equations of the rows of the first parts."""
        labels = torch.cat([*self.labels[:parts]])
        matrix = self._products[: len(labels), : len(labels)].clone()
        means = matrix.mean(0)
        matrix -= means
        matrix -= (means - means.mean())[:, None]
        level = self.level(parts)
        targets = torch.zeros(len(labels), self.classes, dtype=torch.float64).scatter_(1, labels[:, None], 1.0) - level
        unit = float(matrix.diagonal().sum()) / len(labels) or 1.0
        mean = torch.stack(self._sums[:parts]).sum(0) / len(labels)
        return Equations(matrix, targets, unit, mean + self.centre, level, parts)

    def coordinates(self, equations: Equations, begin: int, end: int) -> Tensor:
        """Returns centred products of rows of the second part with those of the first."""
        count = len(equations.matrix)
        products = self._products[count + begin : count + end, :count]
        means = self._products[:count, :count].mean(0)
        return products - products.mean(1, keepdim=True) - (means - means.mean())

    def weight(self, equations: Equations, coefficients: Tensor) -> Tensor:
        """Returns the sum of the rows with these coefficients. Those of a class add up to 0, so no mean matters."""
        pieces = zip(self.rows(equations.parts), self._blocks(equations, coefficients), strict=True)
        return _total(rows.mT @ c.to(rows.dtype) for rows, c in pieces)

    def times(self, equations: Equations, vector: Tensor) -> Tensor:
        """Returns the product of the Gram matrix and a vector."""
        chosen, mean = self.parts[: equations.parts], equations.mean
        pieces = zip(read_blocks(chosen), self._blocks(equations, vector), strict=True)
        middle = _total(rows.double().mT @ v for rows, v in pieces) - vector.sum() * mean
        return torch.cat([rows.double() @ middle for rows in read_blocks(chosen)]) - mean @ middle

    def _blocks(self, equations: Equations, values: Tensor) -> Iterator[Tensor]:
        """Values of each row, (n, …), in the blocks in which rows are read."""
        begin = 0
        for part in self.parts[: equations.parts]:
            yield from values[begin : begin + len(part)].split(BLOCK)
            begin += len(part)


def _total(terms: Iterator[Tensor]) -> Tensor:
    """The sum in float64."""
    total = next(terms).double()
    for term in terms:
        total += term
    return total


def _mirror(matrix: Tensor) -> Tensor:
    """Copies what is below the blocks of the diagonal to the other side, in place."""
    for begin in range(0, len(matrix), COLUMNS):
        end = begin + COLUMNS
        matrix[begin:end, end:] = matrix[end:, begin:end].mT
    return matrix

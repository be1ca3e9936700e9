"""Statistics of features in one pass over the data: mean, scatter and the sums of classes."""

from collections.abc import Callable

import torch
from torch import Tensor


class Statistics:
    """What fits of linear maps need to know of rows (n, D), collected from batches.

    Up to D rows are stored; from then on only the count, the mean, the D × D scatter matrix and the sum of each class
    are kept. So memory is about D × D numbers, however many rows there are.

    Attributes:
        stored: rows that are not in the scatter matrix yet, with their labels.
        count: the number of rows in the scatter matrix.
        mean: of these rows, (D,); None if there are none.
        scatter: Σ (x − mean)(x − mean)ᵀ over these rows, (D, D); None if there are none.
        sums: of these rows, by class: how many, and their sum (D,).
        labelled: whether every row came with a label.
    """

    def __init__(self) -> None:
        self.stored: list[tuple[Tensor, Tensor | None]] = []
        self.count = 0
        self.mean: Tensor | None = None
        self.scatter: Tensor | None = None
        self.sums: dict[int, tuple[int, Tensor]] = {}
        self.labelled = True

    @property
    def samples(self) -> int:
        """The number of rows seen."""
        return self.count + sum(len(rows) for rows, _ in self.stored)

    def update(self, rows: Tensor, labels: Tensor | None = None) -> None:
        """Adds a batch of rows, (B, D), with the classes they belong to, (B,), if these are known."""
        if not len(rows):
            return
        self.labelled = self.labelled and labels is not None
        self.stored.append((rows.detach(), labels))
        if sum(len(rows) for rows, _ in self.stored) > rows.shape[1]:
            self.fold()

    def rows(self) -> Tensor | None:
        """Returns all rows, (n, D), in float64, if there are so few that all of them are stored; else None."""
        if self.scatter is not None:
            return None
        return torch.cat([rows for rows, _ in self.stored]).double() if self.stored else torch.empty(0, 0)

    def fold(self) -> None:
        """Moves stored rows into the mean, the scatter matrix and the sums."""
        if not self.stored:
            return
        self.sums = self.class_sums()
        parts, self.stored = [rows for rows, _ in self.stored], []
        count = sum(map(len, parts))
        mean = sum((rows.sum(0, dtype=torch.float64) for rows in parts), start=torch.zeros_like(parts[0][0]).double())
        mean = mean / count
        if self.mean is None or self.scatter is None:
            self.mean, self.scatter = mean, mean.new_zeros(len(mean), len(mean))
        for rows in parts:
            centred = rows.to(torch.float64, copy=True).sub_(mean)
            self.scatter.addmm_(centred.mT, centred)  # in place: the matrix may be most of what fits into memory
        total = self.count + count  # scatter of a union: the sum of both, and that of the two means
        gap = mean - self.mean
        self.scatter.addr_(gap, gap, alpha=self.count * count / total)
        self.mean = self.mean + gap * (count / total)
        self.count = total

    def class_sums(self) -> dict[int, tuple[int, Tensor]]:
        """Returns the number of rows of each class and their sum (D,), in float64; empty without labels."""
        sums = dict(self.sums)
        for rows, labels in self.stored if self.labelled else []:
            names, index, counts = labels.unique(return_inverse=True, return_counts=True)  # type: ignore[union-attr]
            added = rows.new_zeros(len(names), rows.shape[1], dtype=torch.float64).index_add_(0, index, rows.double())
            for name, number, total in zip(names.tolist(), counts.tolist(), added, strict=True):
                before = sums.get(name, (0, torch.zeros_like(total)))
                sums[name] = (before[0] + number, before[1] + total)
        return sums if self.labelled else {}

    def spread(self) -> tuple[Tensor, Tensor]:
        """Returns the mean (D,) and the variance of every column (D,), in float64."""
        rows = self.rows()
        if rows is not None:
            return rows.mean(0), rows.var(0, correction=0)
        self.fold()
        return self.mean, self.scatter.diagonal() / self.count  # type: ignore[union-attr,return-value]

    def after(self, stage: Callable[[Tensor], Tensor]) -> "Statistics":
        """Returns the statistics of what an affine stage makes of the rows."""
        result = Statistics()
        result.labelled, result.count = self.labelled, self.count
        result.stored = [(stage(rows), labels) for rows, labels in self.stored]
        if self.mean is not None and self.scatter is not None:
            zero = stage(torch.zeros_like(self.mean)[None])
            half = (stage(self.scatter) - zero).mT
            result.mean, result.scatter = stage(self.mean[None])[0], stage(half) - zero
            sums = {name: (n, n * stage(total[None] / n)[0]) for name, (n, total) in self.sums.items()}
            result.sums = sums
        return result

"""Principal components in one pass over the data.

scikit-learn's IncrementalPCA is approximate, and the core needs torch alone.
"""

import torch
from torch import Tensor

from polycov.errors import PolycovError


class StreamingPCA:
    """Principal components in one pass over batches of rows.

    Up to D rows are stored and their Gram matrix is decomposed; from then on only the count, the mean and the D × D
    scatter matrix are kept. So memory is at most about D × D numbers, however many rows there are.
    """

    def __init__(self) -> None:
        self.stored: list[Tensor] = []
        self.count = 0  # rows already in the scatter matrix
        self.mean: Tensor | None = None
        self.scatter: Tensor | None = None

    @property
    def samples(self) -> int:
        """The number of rows seen."""
        return self.count + sum(len(rows) for rows in self.stored)

    def update(self, rows: Tensor) -> None:
        """Adds a batch of rows, (B, D)."""
        if not len(rows):
            return
        self.stored.append(rows.detach())
        if sum(len(stored) for stored in self.stored) > rows.shape[1]:
            self._fold()

    def _fold(self) -> None:
        """Moves the stored rows into the scatter matrix."""
        rows = torch.cat(self.stored).double()
        self.stored = []
        mean = rows.mean(0)
        centred = rows - mean
        scatter = centred.mT @ centred
        if self.mean is None or self.scatter is None:
            self.count, self.mean, self.scatter = len(rows), mean, scatter
            return
        total = self.count + len(rows)  # scatter of a union: the sum of both, and that of the two means
        gap = mean - self.mean
        self.scatter += scatter + torch.outer(gap, gap) * (self.count * len(rows) / total)
        self.mean = self.mean + gap * (len(rows) / total)
        self.count = total

    def components(self, k: int) -> tuple[Tensor, Tensor]:
        """Returns the mean (D,) and the k leading components (k, D), rows of unit length, in float64.

        The sign of each component makes its largest entry positive.

        Raises:
            PolycovError: if there are fewer than k rows or fewer than k columns.
        """
        return self.spectrum(k)[:2]

    def spectrum(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what `components` does, and the variance of the rows along each component, (k,)."""
        if self.scatter is not None and self.stored:
            self._fold()
        if self.scatter is not None and self.mean is not None:
            mean = self.mean
            _check_size(k, self.samples, len(mean))
            values, vectors = torch.linalg.eigh(self.scatter)
            values, basis = values[-k:].flip(0), vectors[:, -k:].flip(1).mT
        else:
            rows = torch.cat(self.stored).double() if self.stored else torch.empty(0, 0)
            _check_size(k, *rows.shape)
            mean, basis, values = _small_components(rows, k)
        peak = basis.gather(1, basis.abs().argmax(1, keepdim=True))
        return mean, basis * peak.sign(), values.clamp(min=0) / max(self.samples, 1)


def _small_components(rows: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, components and eigenvalues of few rows, from their Gram matrix."""
    mean = rows.mean(0)
    centred = rows - mean
    values, vectors = torch.linalg.eigh(centred @ centred.mT)
    values, vectors = values[-k:].flip(0), vectors[:, -k:].flip(1)
    image = centred.mT @ vectors  # (D, k), orthogonal columns; the last may be 0, and QR completes the basis
    return mean, torch.linalg.qr(image).Q.mT, values


def _check_size(k: int, samples: int, columns: int) -> None:
    if k > min(samples, columns):
        raise PolycovError(
            f"Cannot fit {k} principal components to {samples} samples of {columns} dimensions: "
            f"at most {min(samples, columns)} are possible."
        )

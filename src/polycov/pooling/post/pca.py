"""Principal components in one pass over the data.

scikit-learn's IncrementalPCA is approximate, and the core needs torch alone.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.pooling.post.statistics import Statistics

RANK = 1e-10  # eigenvalues below this share of the largest are zero
SHRINKAGE = 0.1  # of whitening


class Spectrum(NamedTuple):
    """The scatter matrix Σ (x − mean)(x − mean)ᵀ = V diag(λ) Vᵀ, without its null space; V has orthonormal columns.

    Of few rows X, minus their mean, V = Xᵀ U diag(λ)^(−½) with the eigenvectors U of X Xᵀ. It is never formed: products
    with its two factors are cheaper.

    Attributes:
        mean: of the rows, (D,).
        values: λ, (r,), the largest first.
        left: V, (D, r); or the first factor, Xᵀ, (D, n).
        right: the second factor, (n, r); None if there is none.
    """

    mean: Tensor
    values: Tensor
    left: Tensor
    right: Tensor | None = None

    def project(self, x: Tensor) -> Tensor:
        """Returns x V, (B, D) → (B, r)."""
        return x @ self.left if self.right is None else (x @ self.left) @ self.right

    def expand(self, x: Tensor) -> Tensor:
        """Returns V x, (r, k) → (D, k)."""
        return self.left @ (x if self.right is None else self.right @ x)

    def leading(self, k: int) -> Tensor:
        """Returns the first columns of V, (D, k)."""
        return self.left[:, :k] if self.right is None else self.left @ self.right[:, :k]

    def coordinates(self) -> Tensor | None:
        """Returns X V = U diag(λ)^½, (n, r), for few rows; None if the rows are not kept."""
        return None if self.right is None else self.right * self.values


def spectrum(statistics: Statistics) -> Spectrum:
    """Returns the eigenvalues and eigenvectors of the scatter, in float64: of up to D rows from their Gram matrix.

    Raises:
        PolycovError: if there are no rows.
    """
    rows = statistics.rows()
    if rows is not None and not len(rows):
        raise PolycovError("Cannot fit a projection to 0 samples.")
    if rows is not None and len(rows) > rows.shape[1]:
        rows = None
    if rows is None:
        statistics.fold()
        mean: Tensor = statistics.mean  # type: ignore[assignment]
        values, vectors = torch.linalg.eigh(statistics.scatter)
    else:
        mean = rows.mean(0)
        centred = rows - mean
        values, vectors = torch.linalg.eigh(centred @ centred.mT)
    keep = values > RANK * values[-1].clamp(min=0)
    values, vectors = values[keep].flip(0), vectors[:, keep].flip(1)
    if rows is None:
        return Spectrum(mean, values, vectors)
    return Spectrum(mean, values, centred.mT, vectors / values.sqrt())


def principal_components(statistics: Statistics, k: int) -> tuple[Tensor, Tensor]:
    """Returns the mean (D,) and the k leading components (k, D), rows of unit length, in float64.

    Of up to D rows the Gram matrix is decomposed, of more rows the scatter matrix. The sign of each component makes its
    largest entry positive.

    Raises:
        PolycovError: if there are fewer than k rows or fewer than k columns.

    Example:
        >>> statistics = Statistics()
        >>> statistics.update(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]))
        >>> principal_components(statistics, 1)
        (tensor([2., 1.], dtype=torch.float64), tensor([[1., 0.]], dtype=torch.float64))
    """
    return principal_variances(statistics, k)[:2]


def principal_variances(statistics: Statistics, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what `principal_components` does, and the variance of the rows along each component, (k,)."""
    rows = statistics.rows()
    if rows is None:
        statistics.fold()
    if statistics.scatter is not None and statistics.mean is not None:
        mean = statistics.mean
        _check_size(k, statistics.samples, len(mean))
        values, vectors = torch.linalg.eigh(statistics.scatter)
        values, basis = values[-k:].flip(0), vectors[:, -k:].flip(1).mT
    else:
        rows = torch.empty(0, 0) if rows is None else rows
        _check_size(k, *rows.shape)
        mean, basis, values = _small_components(rows, k)
    peak = basis.gather(1, basis.abs().argmax(1, keepdim=True))
    return mean, basis * peak.sign(), values.clamp(min=0) / max(statistics.samples, 1)


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


def whitened_components(statistics: Statistics, k: int) -> tuple[Tensor, Tensor]:
    """Returns the mean (D,) and the leading components (k', D), divided by √(variance + a tenth of the mean one).

    Without the tenth, components that only carry noise would weigh as much as all others. k' is k, or the rank.
    """
    of = spectrum(statistics)
    variances = of.values[:k] / statistics.samples
    return of.mean, (of.leading(k) / (variances + SHRINKAGE * variances.mean()).sqrt()).mT


def completed(components: Tensor, k: int, seed: int) -> Tensor:
    """Returns components (k', D) and, if they are fewer than k, as many random directions orthogonal to them."""
    missing, columns = k - len(components), components.shape[1]
    if missing <= 0:
        return components
    random = torch.randn(missing, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis = torch.linalg.qr(torch.cat([components, random.to(components)]).mT).Q.mT
    return torch.cat([components, basis[len(components) :]])

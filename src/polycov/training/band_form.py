"""A symmetric matrix in band form: one factorisation for shifts of any size.

An orthogonal Q, a product of Householder reflections in blocks of b, takes A to a matrix with b diagonals on either
side of the main one,

    A = Q B Qᵀ,    (A + sI)⁻¹ T = Q (B + sI)⁻¹ QᵀT,

and a banded system costs next to nothing. Eigenvectors would do the same with b = 0, but most of the time of ``eigh``
goes into products of matrices and vectors; this takes products of matrices alone. At 4000 rows on two cores it is some
twenty times faster than ``eigh``, and as fast as four Cholesky factorisations.
"""

import torch
from torch import Tensor

BAND = 64
SMALL, SMALL_BAND = 1024, 48


class BandForm:
    """A = Q B Qᵀ with Q orthogonal and B banded.

    Args:
        matrix: A, symmetric, (n, n); it is overwritten.

    Example:
        >>> a = torch.randn(100, 100, dtype=torch.float64)
        >>> a = a @ a.mT
        >>> t = torch.randn(100, 2, dtype=torch.float64)
        >>> form = BandForm(a.clone())
        >>> x = form.rotate(form.solve(form.rotate(t.mT).mT, torch.tensor([0.5, 2.0])).mT, back=True).mT
        >>> torch.allclose((a + 2.0 * torch.eye(100)) @ x[1], t)
        True
    """

    def __init__(self, matrix: Tensor) -> None:
        self.band = BAND if len(matrix) > SMALL else SMALL_BAND
        self.dtype = matrix.dtype
        self._matrix = matrix  # Householder vectors take the place of what is below the band
        self._diagonal: list[Tensor] = []  # blocks of B
        self._below: list[Tensor] = []  # blocks of B below them
        self._factors: list[Tensor] = []  # of the reflections, I − V F Vᵀ
        for begin in range(0, len(matrix), self.band):
            end = min(begin + self.band, len(matrix))
            self._diagonal.append(matrix[begin:end, begin:end].clone())
            if end < len(matrix):
                self._eliminate(begin, end)

    def _eliminate(self, begin: int, end: int) -> None:
        """Reflects what is below the band to zero, and the rest of the matrix with it."""
        panel, rest = self._matrix[end:, begin:end], self._matrix[end:, end:]
        packed, scales = torch.geqrf(panel)
        count = len(scales)
        self._below.append(packed[:count].triu())
        vectors = packed[:, :count].tril(-1)
        vectors.diagonal().fill_(1.0)
        vectors *= scales != 0  # a zero column needs no reflection
        inverse = (vectors.mT @ vectors).triu(1)
        inverse.diagonal().copy_(torch.where(scales != 0, 1 / scales, 1.0))
        eye = torch.eye(count, dtype=panel.dtype, device=panel.device)
        factor = torch.linalg.solve_triangular(inverse, eye, upper=True)
        image = rest @ vectors @ factor
        image -= 0.5 * vectors @ (factor.mT @ (vectors.mT @ image))
        rest.addmm_(torch.cat([image, vectors], 1), torch.cat([vectors, image], 1).mT, alpha=-1)
        panel[:, :count] = vectors
        self._factors.append(factor)

    def rotate(self, rows: Tensor, *, back: bool = False) -> Tensor:
        """Returns rows (…, n) times Q, or times Qᵀ to get back."""
        rows = rows.clone()
        steps = list(enumerate(self._factors))
        for step, factor in reversed(steps) if back else steps:
            begin, end = step * self.band, (step + 1) * self.band
            vectors, part = self._matrix[end:, begin : begin + len(factor)], rows[..., end:]
            part -= part @ vectors @ (factor.mT if back else factor) @ vectors.mT
        return rows

    def solve(self, targets: Tensor, shifts: Tensor) -> Tensor:
        """Returns (B + sI)⁻¹ T for each shift s, (shifts, n, k), by block elimination.

        Args:
            targets: T, (n, k).
            shifts: for which B + sI is positive definite.

        Raises:
            torch.linalg.LinAlgError: if it is not.
        """
        solved: list[Tensor] = []  # blocks of the result, (shifts, b, k) each, and not parts of one tensor: faster
        inverses: list[Tensor] = []  # of the Cholesky factors of the diagonal blocks
        links: list[Tensor] = []  # the blocks below them
        eye = torch.eye(self.band, dtype=targets.dtype, device=targets.device)
        for k, part in enumerate(targets.split(self.band)):
            unit = eye[: len(part), : len(part)]
            block = torch.addcmul(self._diagonal[k], shifts[:, None, None], unit)
            right = part.expand(len(shifts), -1, -1)
            if k:
                links.append(self._below[k - 1] @ inverses[-1].mT)
                block = torch.baddbmm(block, links[-1], links[-1].mT, alpha=-1)
                right = torch.baddbmm(right, links[-1], solved[-1], alpha=-1)
            inverses.append(torch.linalg.solve_triangular(torch.linalg.cholesky(block), unit, upper=False))
            solved.append(inverses[-1] @ right)
        for k in reversed(range(len(solved))):
            if k + 1 < len(solved):
                solved[k] = torch.baddbmm(solved[k], links[k].mT, solved[k + 1], alpha=-1)
            solved[k] = inverses[k].mT @ solved[k]
        return torch.cat(solved, 1)

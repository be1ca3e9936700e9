"""The square root by coupled Newton–Schulz iteration: a polynomial of the matrix, made of products alone."""

import torch
from torch import Tensor

from polycov.errors import positive_int
from polycov.functions.base import MatrixFunction


def newton_schulz(matrix: Tensor, iterations: int = 5, *, inverse: bool = False) -> Tensor:
    """Returns Y_k ≈ A^(1/2), or Z_k ≈ A^(−1/2), after k iterations.

    Y₀ = A, Z₀ = I, T = ½(3I − Z Y), Y ← Y T, Z ← T Z. Both are polynomials of A, and Y_k = A Z_k. The first iteration
    needs no product for Z Y and the last only one of Y and Z: 3k − 3 products in all.

    Args:
        matrix: symmetric A with eigenvalues in [0, 1], (B, C, C); divide by the trace before.
        iterations: k ≥ 1.
        inverse: return Z_k.

    Returns:
        (B, C, C).

    Reference: Li, Xie, Wang, Gao, "Towards Faster Training of Global Covariance Pooling Networks by Iterative Matrix
    Square Root Normalization", CVPR 2018.

    Example:
        >>> newton_schulz(torch.tensor([[[0.25, 0.0], [0.0, 0.75]]]), 12).diagonal(dim1=1, dim2=2)
        tensor([[0.5000, 0.8660]])
    """
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    step = 1.5 * eye - 0.5 * matrix
    root, inverse_root = (matrix if iterations == 1 and inverse else matrix @ step), step
    for i in range(2, iterations + 1):
        step = torch.baddbmm(eye, inverse_root, root, beta=1.5, alpha=-0.5)
        last = i == iterations
        if not (last and inverse):
            root = root @ step
        if not last or inverse:
            inverse_root = step @ inverse_root
    return inverse_root if inverse else root


class NewtonSchulzSqrt(MatrixFunction):
    """q(C) = √(tr C) · Y_k(C / tr C): see `polycov.functional.newton_schulz`."""

    degree = 0.5

    def __init__(self, iterations: int = 5) -> None:
        super().__init__()
        self.iterations = positive_int("sqrt", "iterations", iterations)

    def forward(self, matrix: Tensor, root: Tensor) -> Tensor:
        return newton_schulz(matrix, self.iterations)

    def quotient(self, gram: Tensor, root: Tensor) -> Tensor:
        return newton_schulz(gram, self.iterations, inverse=True)

    def cost(self, size: int) -> float:
        return max(3 * self.iterations - 3, 1) * float(size) ** 3

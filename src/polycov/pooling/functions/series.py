"""Square roots by a Taylor polynomial or a Padé approximant, with the gradient of the exact root."""

import math
from functools import partial

import torch
from torch import Tensor

from polycov.errors import positive_int
from polycov.pooling.functions.base import MatrixFunction
from polycov.pooling.functions.decompositions import cholesky
from polycov.pooling.functions.lyapunov import with_lyapunov_gradient
from polycov.pooling.functions.polynomial import count_products, polynomial
from polycov.pooling.plan import Algorithm
from polycov.pooling.registry import register

MOST = 100  # of the degree and of the order


def _frobenius(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Returns A / ‖A‖ and √‖A‖, (B, 1, 1), with the Frobenius norm; a zero matrix stays zero."""
    norm = torch.linalg.matrix_norm(matrix, keepdim=True)
    return matrix / torch.where(norm == 0, 1.0, norm), norm.sqrt()


def taylor_sqrt(matrix: Tensor, degree: int = 11) -> Tensor:
    """Returns √A by the Taylor polynomial of √(1 − z) at z = 0, with Z = I − A/‖A‖.

    √A ≈ √‖A‖ (I − ½ Z − ⅛ Z² − … ), in about 2√degree products. The error on an eigenvalue λ of A/‖A‖ is at most
    (1 − λ)^(degree + 1): small eigenvalues are poorly approximated, and 0 is mapped to a positive number.

    Args:
        matrix: symmetric positive semidefinite A, (B, C, C).
        degree: of the polynomial.

    Reference: Song, Sebe, Wang, "Fast Differentiable Matrix Square Root", ICLR 2022 (MTP).

    Example:
        >>> taylor_sqrt(torch.tensor([[[9.0, 0.0], [0.0, 16.0]]]), 40).diagonal(dim1=1, dim2=2)
        tensor([[3., 4.]])
    """
    unit, size = _frobenius(matrix)
    coefficients = [1.0]
    for k in range(1, positive_int("sqrt_taylor", "degree", degree) + 1):
        coefficients.append(coefficients[-1] * (k - 1.5) / k)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return size * polynomial(eye - unit, coefficients)


def pade_sqrt(matrix: Tensor, order: int = 5) -> Tensor:
    """Returns √A by the diagonal Padé approximant of √(1 − z) at z = 0, with Z = I − A/‖A‖.

    In x = 1 − z the approximant [m/m] is P(x)/Q(x) = Σ_i binom(2m+1, 2i) xⁱ / Σ_i binom(2m+1, 2i+1) xⁱ: all
    coefficients are positive, so nothing cancels, and Q(A/‖A‖) is positive definite. With r = √x its error is
    (P/Q − r)/(P/Q + r) = ((1 − r)/(1 + r))^(2m+1). Computed in float64, with a Cholesky factorisation.

    Args:
        matrix: symmetric positive semidefinite A, (B, C, C).
        order: m.

    Reference: Song, Sebe, Wang, "Fast Differentiable Matrix Square Root", ICLR 2022 (MPA).

    Example:
        >>> pade_sqrt(torch.tensor([[[4.0, 0.0], [0.0, 9.0]]]), 9).diagonal(dim1=1, dim2=2)
        tensor([[2., 3.]])
    """
    n = 2 * positive_int("sqrt_pade", "order", order, MOST) + 1
    unit, size = _frobenius(matrix.double())
    numerator = polynomial(unit, [float(math.comb(n, i)) for i in range(0, n, 2)])
    denominator = polynomial(unit, [float(math.comb(n, i)) for i in range(1, n + 1, 2)])
    result = torch.cholesky_solve(numerator, cholesky(denominator))
    return (size * 0.5 * (result + result.mT)).to(matrix.dtype)


class _SeriesSqrt(MatrixFunction):
    """A root with the gradient of the exact root, from the solution of a Lyapunov equation.

    The paper solves the equation iteratively; here an eigendecomposition solves it exactly.
    """

    degree = 0.5
    routes = ("covariance",)
    wide = True
    approximate_gradient = True


@register("function", "sqrt_taylor", "sqrt_taylor(11)")
class TaylorSqrt(_SeriesSqrt):
    """√C by a Taylor polynomial, with Lyapunov gradient: see `polycov.functional.taylor_sqrt`.

    Args:
        degree: of the polynomial.
    """

    def __init__(self, degree: int = 11) -> None:
        super().__init__()
        self.order = positive_int("sqrt_taylor", "degree", degree, MOST)
        self.products = count_products(self.order)

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return with_lyapunov_gradient(matrix, partial(taylor_sqrt, degree=self.order))


@register("function", "sqrt_pade", "sqrt_pade(5)")
class PadeSqrt(_SeriesSqrt):
    """√C by a diagonal Padé approximant, with Lyapunov gradient: see `polycov.functional.pade_sqrt`.

    Args:
        order: m, of the approximant [m/m].
    """

    products = None  # it needs a factorisation

    def __init__(self, order: int = 5) -> None:
        super().__init__()
        self.order = positive_int("sqrt_pade", "order", order, MOST)

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return with_lyapunov_gradient(matrix, partial(pade_sqrt, order=self.order))

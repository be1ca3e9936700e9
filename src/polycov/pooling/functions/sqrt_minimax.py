"""The square root by a composition of best polynomials."""

import math

import torch
from torch import Tensor

from polycov.errors import finite_number, one_of
from polycov.pooling.functions.base import MOST_GROWTH, MatrixFunction
from polycov.pooling.functions.composition import compose, composed_products
from polycov.pooling.functions.lyapunov import GRADIENTS, with_lyapunov_gradient
from polycov.pooling.functions.minimax import factor_degrees, minimax_factors
from polycov.pooling.plan import Algorithm
from polycov.pooling.registry import register

NORMS = ("trace", "frobenius", "square")
LOWEST = 0.001


@register(
    "function",
    "sqrt_minimax",
    "sqrt_minimax(9)",
    "sqrt_minimax(5, 5, norm=square)",
    "sqrt_minimax(3, 5, low=0.1, norm=trace)",
    "sqrt_minimax(9, gradient=lyapunov)",
)
class MinimaxSqrt(MatrixFunction):
    """√C by a composition of the best odd polynomials of the given degrees, 3, 5 or 9 each.

    With s = √λ of an eigenvalue λ of A = C / norm, √C = √norm · A · (product of factors), where each step is an odd
    polynomial s ← s t(s²) that brings s closer to 1 (`polycov.functional.compose`). Newton–Schulz takes
    t(m) = (3 − m)/2 in every step, which is best near s = 1 and slow far from it. Here each polynomial is the one whose
    largest error is smallest on the interval that the last one left, beginning with [low, 1]
    (`polycov.functional.minimax_factors`). The relative error of the root is at most `error` for all λ ≥ low² · norm;
    smaller eigenvalues are damped, as they are by Newton–Schulz.

    The error of n products falls like that of the best polynomial of degree about 2ⁿ, while a step of degree 9 takes
    five products, one of degree 5 four, one of degree 3 three; the first saves one and the last two. A lower end that
    is too small spends the degree on eigenvalues that hardly matter, and makes the root of all others ripple. A small
    degree first keeps the coefficients small, and with them the rounding errors.

    Args:
        degrees: of the polynomials, in order.
        low: lower end of the interval of s, from 0.001 to 1.
        norm: an upper bound on the largest eigenvalue: "trace"; "frobenius", ‖C‖; or "square", ‖C²‖^½, which is
            closest and takes one more product. A bound twice too large halves all λ, which costs a factor √2 in low.
        gradient: "own" for the derivative of what is computed, "lyapunov" for that of the exact root, by an
            eigendecomposition. The own gradient has the ripples of the polynomial, enlarged by its degree.

    Attributes:
        error: the largest relative error on eigenvalues of at least low² · norm.

    Example:
        >>> root = MinimaxSqrt(3, 9, 9, low=0.03)
        >>> root.products, round(root.error, 3)
        (10, 0.003)
    """

    degree = 0.5

    def __init__(self, *degrees: int, low: float = 0.2, norm: str = "frobenius", gradient: str = "own") -> None:
        super().__init__()
        steps = factor_degrees("sqrt_minimax", degrees)
        self.norm = one_of("sqrt_minimax", "norm", norm, NORMS)
        self.approximate_gradient = one_of("sqrt_minimax", "gradient", gradient, GRADIENTS) == "lyapunov"
        self.routes = ("covariance",) if self.approximate_gradient else MatrixFunction.routes
        self.spelling = degrees, low, norm
        self.factors, self.error = minimax_factors(steps, finite_number("sqrt_minimax", "low", low, LOWEST, 1))
        growth = math.prod(factor[0] for factor in self.factors)
        self.wide = self.approximate_gradient or growth > MOST_GROWTH
        self.products = composed_products(steps) + (norm == "square")

    def _divide(self, matrix: Tensor) -> tuple[Tensor, Tensor | None]:
        """A divided by its norm, and the root of the norm, (B, 1, 1); A has trace 1 already."""
        if self.norm == "trace":
            return matrix, None
        power = matrix @ matrix if self.norm == "square" else matrix
        norm = (power * power).sum((1, 2), keepdim=True)  # torch's vector_norm has no third derivative
        norm = torch.where(norm == 0, 1.0, norm).sqrt()
        norm = norm.sqrt() if self.norm == "square" else norm
        return matrix / norm, norm.sqrt()

    def _root(self, matrix: Tensor) -> Tensor:
        unit, size = self._divide(matrix)
        result = compose(unit, self.factors)
        return result if size is None else result * size

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return with_lyapunov_gradient(matrix, self._root) if self.approximate_gradient else self._root(matrix)

    def quotient(self, gram: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        unit, size = self._divide(gram)
        result = compose(unit, self.factors, inverse=True)
        return result if size is None else result / size

    def quotient_values(self, points: Tensor, spectrum: Tensor, root: Tensor) -> Tensor:
        order = {"trace": 1, "frobenius": 2, "square": 4}[self.norm]
        norm = torch.linalg.vector_norm(spectrum, order, -1, keepdim=True)
        norm = torch.where(norm == 0, 1.0, norm) if order > 1 else torch.ones_like(norm)
        values = compose((points / norm).reshape(-1, 1, 1), self.factors, inverse=True)
        return values.reshape(points.shape) / norm.sqrt()

    def explained(self) -> MatrixFunction:
        degrees, low, norm = self.spelling
        return MinimaxSqrt(*degrees, low=low, norm=norm)

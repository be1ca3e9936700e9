"""Stage 2: a function q of the statistic C, by the names that specs use."""

import math

from torch import Tensor

import polycov.pooling.functions.brownian
import polycov.pooling.functions.series
import polycov.pooling.functions.sparse_inverse
import polycov.pooling.functions.sqrt_minimax
import polycov.pooling.functions.tangent  # noqa: F401  (importing them registers the stages)
from polycov.errors import PolycovError, finite_number, one_of, positive_int
from polycov.pooling.functions.base import MatrixFunction, apply_function
from polycov.pooling.functions.lyapunov import GRADIENTS, LyapunovSqrt
from polycov.pooling.functions.newton_schulz import NewtonSchulzSqrt
from polycov.pooling.functions.polynomial import ChebyshevFunction
from polycov.pooling.functions.spectral import SpectralLog, SpectralPower
from polycov.pooling.plan import Algorithm
from polycov.pooling.registry import register

MOST = 1000  # iterations, or degree


@register("function", "identity")
class Identity(MatrixFunction):
    """q(C) = C."""

    degree = 1.0
    products = 0
    has_rectangular = True

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return matrix

    def quotient(self, gram: Tensor, root: Tensor, algorithm: Algorithm) -> None:
        return None

    def rectangular(self, matrix: Tensor) -> Tensor:
        return matrix


def _exact(stage: str, method: object) -> bool:
    """Whether ``method`` is "exact"; any other string is an error."""
    if isinstance(method, str) and method != "exact":
        raise PolycovError(f"Expected {stage}(exact) or {stage} with a positive integer, got {stage}({method}).")
    return method == "exact"


@register("function", "sqrt", "sqrt(1)", "sqrt(5)", "sqrt(30)", "sqrt(exact)", "sqrt(20, gradient=lyapunov)")
def sqrt(method: int | str = 5, *, gradient: str = "own") -> MatrixFunction:
    """√C by k Newton–Schulz iterations, or ``exact`` by eigendecomposition.

    Args:
        method: the number of iterations, or "exact".
        gradient: "own" for the derivative of what is computed, "lyapunov" for that of the exact root.
    """
    one_of("sqrt", "gradient", gradient, GRADIENTS)
    if _exact("sqrt", method):
        return SpectralPower(0.5)  # its gradient solves the Lyapunov equation
    iterations = positive_int("sqrt", "iterations", method, MOST)
    return LyapunovSqrt(iterations) if gradient == "lyapunov" else NewtonSchulzSqrt(iterations)


@register("function", "power", "power(0.3, exact)", "power(0.7, 12)")
def power(exponent: float, method: int | str = "exact") -> MatrixFunction:
    """C^p for p > 0, ``exact`` or by a Chebyshev polynomial of the given degree on [0, 1] times the trace.

    Args:
        exponent: p.
        method: "exact", or the degree.
    """
    p = finite_number("power", "exponent", exponent, 0, math.inf)
    if _exact("power", method):
        return SpectralPower(p)
    return ChebyshevFunction(lambda x: x**p, positive_int("power", "degree", method, MOST), degree=p)


@register("function", "log", "log(exact)", "log(16)")
def log(method: int | str = "exact", *, floor: float | None = None) -> MatrixFunction:
    """Log C, ``exact`` or by a Chebyshev polynomial of the given degree on [floor, 1] times the trace.

    Args:
        method: "exact", or the degree.
        floor: an eigenvalue, as a fraction of the trace. Below it, the exact logarithm is constant (default 1e-6) and
            the polynomial is not fitted (default 1e-3).
    """
    exact = _exact("log", method)
    low = finite_number("log", "floor", (1e-6 if exact else 1e-3) if floor is None else floor, 0, 1)
    if exact:
        return SpectralLog(low)
    return ChebyshevFunction(math.log, positive_int("log", "degree", method, MOST), low=low, logarithmic=True)


def matrix_sqrt(matrix: Tensor, method: int | str = 5) -> Tensor:
    """Returns √C of symmetric positive semidefinite C, (B, C, C), "exact" or by k Newton–Schulz iterations.

    Example:
        >>> matrix_sqrt(torch.tensor([[[4.0, 0.0], [0.0, 9.0]]]), "exact").diagonal(dim1=1, dim2=2)
        tensor([[2., 3.]])
    """
    return apply_function(sqrt(method), matrix)


def matrix_power(matrix: Tensor, exponent: float, method: int | str = "exact") -> Tensor:
    """Returns C^p of symmetric positive semidefinite C, (B, C, C), "exact" or by a polynomial of the given degree.

    Example:
        >>> matrix_power(torch.tensor([[[8.0]]]), 1 / 3).item()
        2.0
    """
    return apply_function(power(exponent, method), matrix)


def matrix_log(matrix: Tensor, method: int | str = "exact", floor: float | None = None) -> Tensor:
    """Returns log C of symmetric positive semidefinite C, (B, C, C), "exact" or by a polynomial of the given degree.

    Example:
        >>> round(matrix_log(torch.tensor([[[math.e]]])).item(), 6)
        1.0
    """
    return apply_function(log(method, floor=floor), matrix)


__all__ = ["MatrixFunction", "matrix_log", "matrix_power", "matrix_sqrt"]

"""Polynomials of a matrix with few products, and polynomials fitted to scalar functions."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polycov.errors import PolycovError, positive_int, true_or_false
from polycov.pooling.functions.base import MatrixFunction, add_identity
from polycov.pooling.plan import Algorithm
from polycov.pooling.registry import register

Coefficient = float | Tensor  # a Tensor holds one value per sample, (B,)


def _stride(degree: int) -> int:
    """The s that minimises (s − 1) + ⌊degree / s⌋, the number of products."""
    best = 1
    for s in range(2, degree + 1):
        if s - 1 + degree // s < best - 1 + degree // best:
            best = s
    return best


def count_products(degree: int) -> int:
    """Returns the number of matrix products in a polynomial of this degree.

    Example:
        >>> [count_products(k) for k in (1, 2, 4, 9, 16)]
        [1, 2, 3, 5, 7]
    """
    s = _stride(degree)
    return s - 1 + degree // s if degree else 0


def _combine(coefficients: Sequence[Coefficient], powers: Sequence[Tensor]) -> Tensor:
    terms = [
        (c[:, None, None] if isinstance(c, Tensor) else c) * p
        for c, p in zip(coefficients, powers[: len(coefficients)], strict=True)
    ]
    return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]


def _horner(blocks: Sequence[Sequence[Coefficient]], powers: Sequence[Tensor], top: Tensor) -> Tensor:
    """Σ_j (Σ_i blocks[j][i] powers[i]) topʲ: the outer loop of Paterson and Stockmeyer."""
    result = _combine(blocks[-1], powers)
    for block in reversed(blocks[:-1]):
        result = result @ top + _combine(block, powers)
    return result


def _not_empty(coefficients: Sequence[Coefficient]) -> Sequence[Coefficient]:
    if len(coefficients) == 0:
        raise PolycovError("Expected at least one coefficient, got none.")
    return coefficients


def polynomial(matrix: Tensor, coefficients: Sequence[Coefficient]) -> Tensor:
    """Returns c₀ I + c₁ A + c₂ A² + … with about 2√degree matrix products.

    Args:
        matrix: A, (B, C, C).
        coefficients: c₀, c₁, …; each a number, or one number per sample, (B,).

    Reference: Paterson, Stockmeyer, "On the Number of Nonscalar Multiplications Necessary to Evaluate Polynomials",
    SIAM J. Comput. 1973.

    Example:
        >>> polynomial(torch.tensor([[[2.0]]]), [1, 0, 3]).item()
        13.0
    """
    if len(coefficients) < 2:  # include the matrix, so that the result has a gradient, even if it is 0
        coefficients = [*_not_empty(coefficients), 0.0]
    s = _stride(len(coefficients) - 1)
    powers = [torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix), matrix]
    while len(powers) <= s:
        powers.append(powers[-1] @ matrix)
    blocks = [coefficients[i : i + s] for i in range(0, len(coefficients), s)]
    return _horner(blocks, powers, powers[s])


def chebyshev(matrix: Tensor, coefficients: Sequence[float], interval: tuple[float, float] = (0.0, 1.0)) -> Tensor:
    """Returns Σ_i c_i T_i(A′), where A′ is A with ``interval`` mapped to [−1, 1].

    It takes as few products as `polynomial`, and is stable at high degree, where powers are not.

    Args:
        matrix: A, (B, C, C).
        coefficients: c₀, c₁, …, as `chebyshev_fit` returns them.
        interval: an interval that contains the eigenvalues of A.

    Example:
        >>> coefficients = chebyshev_fit(math.exp, 12)
        >>> round(chebyshev(torch.tensor([[[0.5]]]), coefficients).item(), 5) == round(math.exp(0.5), 5)
        True
    """
    low, high = interval
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    x = (2 * matrix - (high + low) * eye) / (high - low)
    s = _stride(len(_not_empty(coefficients)) - 1)
    terms = [eye, x]
    for i in range(2, s + 1):
        a, b = (i + 1) // 2, i // 2  # T_(a+b) = 2 T_a T_b − T_(a−b)
        terms.append(2 * terms[a] @ terms[b] - terms[a - b])
    blocks: list[list[float]] = []
    rest = list(coefficients)
    while len(rest) > s:  # divide by T_s: T_(s+i) = 2 T_s T_i − T_|s−i|
        quotient = [0.0] * (len(rest) - s)
        for i in range(len(rest) - 1 - s, 0, -1):
            quotient[i] = 2 * rest[s + i]
            rest[abs(s - i)] -= rest[s + i]
        quotient[0] = rest[s]
        blocks.append(rest[:s])
        rest = quotient
    return _horner([*blocks, rest], terms, terms[s])


def _nodes(degree: int, interval: tuple[float, float]) -> list[float]:
    low, high = interval
    angles = [math.pi * (j + 0.5) / (degree + 1) for j in range(degree + 1)]
    return [(high + low) / 2 + (high - low) / 2 * math.cos(a) for a in angles]


def chebyshev_fit(
    function: Callable[[float], float], degree: int, interval: tuple[float, float] = (0.0, 1.0)
) -> list[float]:
    """Returns the Chebyshev coefficients of the polynomial that interpolates ``function`` at the Chebyshev nodes.

    Args:
        function: a scalar function, smooth on the interval.
        degree: degree of the polynomial, ≥ 1.
        interval: (low, high).

    Returns:
        degree + 1 coefficients, for `chebyshev` and `chebyshev_value`.

    Example:
        >>> [round(c, 6) for c in chebyshev_fit(lambda x: x * x, 2, (-1.0, 1.0))]
        [0.5, 0.0, 0.5]
    """
    positive_int("chebyshev_fit", "degree", degree)
    if not interval[0] < interval[1]:
        raise PolycovError(f"Expected an interval (low, high) with low < high, got {interval}.")
    values = [function(x) for x in _nodes(degree, interval)]
    n = degree + 1
    return [
        (1 if k == 0 else 2) / n * sum(v * math.cos(math.pi * k * (j + 0.5) / n) for j, v in enumerate(values))
        for k in range(n)
    ]


def chebyshev_value(x: float, coefficients: Sequence[float], interval: tuple[float, float] = (0.0, 1.0)) -> float:
    """Returns the value of a Chebyshev series at a number (Clenshaw's recurrence)."""
    low, high = interval
    t = (2 * x - (high + low)) / (high - low)
    a = b = 0.0
    for c in reversed(coefficients[1:]):
        a, b = 2 * t * a - b + c, a
    return t * a - b + coefficients[0]


@register("function", "polynomial", "polynomial(0.5, 1, -0.25)", "polynomial(0, 2, -1, 0.5, unit_trace=True)")
class Polynomial(MatrixFunction):
    """c₀ I + c₁ C + c₂ C² + …, any polynomial by its coefficients.

    On large features a high degree can leave the range of float32, and the pool raises `NonFiniteError`. With
    ``unit_trace=True`` it is a polynomial of C / tr C, whose eigenvalues always lie in [0, 1].
    """

    def __init__(self, *coefficients: float, unit_trace: bool = False) -> None:
        super().__init__()
        if not coefficients or not all(isinstance(c, int | float) and abs(c) < 1e300 for c in coefficients):
            raise PolycovError(f"Expected finite numbers as coefficients of polynomial, got {coefficients}.")
        self.coefficients = coefficients
        self.unit_trace = true_or_false("polynomial", "unit_trace", unit_trace)
        self.products = count_products(len(coefficients) - 1)

    def _scaled(self, root: Tensor) -> Sequence[Coefficient]:
        """The coefficients of q as a polynomial of A = C / tr C: c_i (tr C)^i."""
        if self.unit_trace:
            return self.coefficients
        return [c * root ** (2 * i) if i and c else float(c) for i, c in enumerate(self.coefficients)]

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return polynomial(matrix, self._scaled(root))

    def quotient(self, gram: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return polynomial(gram, self._scaled(root)[1:] or [0.0])

    def constant(self, root: Tensor) -> Tensor | None:
        return torch.full_like(root, self.coefficients[0]) if self.coefficients[0] else None


class ChebyshevFunction(MatrixFunction):
    """The Chebyshev polynomial of a scalar function f on an interval, applied to A = C / tr C.

    ``q(C) = (tr C)^degree · f(A)``, or f(A) + log(tr C) I if ``logarithmic``. Eigenvalues below the interval are
    extrapolated. On the Gram side, r(x) = (f(x) − f(0)) / x is a polynomial of one degree less, fitted exactly.
    """

    def __init__(
        self,
        function: Callable[[float], float],
        order: int,
        *,
        low: float = 0.0,
        degree: float = 0.0,
        logarithmic: bool = False,
    ) -> None:
        super().__init__()
        self.interval = (low, 1.0)
        self.degree = degree
        self.logarithmic = logarithmic
        self.coefficients = chebyshev_fit(function, order, self.interval)
        self.products = count_products(order)
        self.at_zero = chebyshev_value(0.0, self.coefficients, self.interval)
        # The nodes of a fit never include 0, since low ≥ 0, so the division is safe.
        self.quotient_coefficients = (
            chebyshev_fit(
                lambda x: (chebyshev_value(x, self.coefficients, self.interval) - self.at_zero) / x,
                order - 1,
                self.interval,
            )
            if order > 1
            else [self.coefficients[1] * 2 / (1.0 - low)]
        )

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        result = chebyshev(matrix, self.coefficients, self.interval)
        return add_identity(result, 2 * root.log() if self.logarithmic else None)

    def quotient(self, gram: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return chebyshev(gram, self.quotient_coefficients, self.interval)

    def constant(self, root: Tensor) -> Tensor:
        return 2 * root.log() + self.at_zero if self.logarithmic else torch.full_like(root, self.at_zero)

"""The square root by coupled Newton–Schulz iteration: a polynomial of the matrix, computed with products alone."""

import torch
from torch import Tensor

from polycov.errors import positive_int
from polycov.pooling.functions.base import MOST_GROWTH, MatrixFunction, times_gram
from polycov.pooling.functions.composition import Factor, compose, composed_products
from polycov.pooling.functions.spectral import Quotient, ScalarFunction, spectral
from polycov.pooling.plan import Algorithm

# With T(M) = (3 − M)/2, two iterations multiply Y and Z by T(M) T(M T(M)²).
ONE: Factor = (1.5, -0.5)
TWO: Factor = (36 / 16, -39 / 16, 27 / 16, -9 / 16, 1 / 16)


def _factors(iterations: int) -> list[Factor]:
    return [TWO] * (iterations // 2) + [ONE] * (iterations % 2)


def newton_schulz(matrix: Tensor, iterations: int = 5, *, inverse: bool = False) -> Tensor:
    """Returns Y_k ≈ A^(1/2), or Z_k ≈ A^(−1/2), after k iterations.

    Y₀ = A, Z₀ = I, T = ½(3I − Z Y), Y ← Y T, Z ← T Z. Both are polynomials of A, and Y_k = A Z_k. With M = Z Y an
    iteration is T = (3I − M)/2, Y ← Y T, Z ← Z T, M ← M T², a step of `compose`. Two of them make one step with a
    factor of degree 4, which takes 10 products for k = 5 instead of 15.

    Args:
        matrix: symmetric A with eigenvalues in [0, 1], (B, C, C); divide by the trace first.
        iterations: k ≥ 1. Rounding may turn an eigenvalue 0 negative, and each iteration then multiplies it by 1.5, so
            the iteration of a singular matrix diverges beyond k ≈ 15 in float32 and 40 in float64. A pool computes
            k > 7 in float64 and k > 12 on eigenvalues.
        inverse: return Z_k.

    Returns:
        (B, C, C). The gradient assumes that A is symmetric, and is symmetric.

    Reference: Li, Xie, Wang, Gao, "Towards Faster Training of Global Covariance Pooling Networks by Iterative Matrix
    Square Root Normalization", CVPR 2018.

    Example:
        >>> newton_schulz(torch.tensor([[[0.25, 0.0], [0.0, 0.75]]]), 12).diagonal(dim1=1, dim2=2)
        tensor([[0.5000, 0.8660]])
    """
    iterations = positive_int("newton_schulz", "iterations", iterations)
    return compose(matrix, _factors(iterations), inverse=inverse)


def count_products(iterations: int) -> int:
    """Returns the number of matrix products in `newton_schulz`.

    Example:
        >>> [count_products(k) for k in (1, 2, 3, 4, 5, 6)]
        [1, 3, 5, 7, 10, 12]
    """
    return composed_products([len(c) - 1 for c in _factors(iterations)])


# With more iterations than this, rounding errors on a singular matrix grow too large, and only eigenvalues work.
MOST_ITERATIONS = 12

Jet = tuple[Tensor, Tensor, Tensor]


class NewtonSchulzEigenvalues(ScalarFunction):
    """y_k(x), or z_k(x) with ``inverse``: the iteration on one eigenvalue, y ← y t and m ← m t² with t = (3 − m)/2.

    The distance e = 1 − m has a recurrence of its own, e ← e²(3 + e)/4, in which nothing cancels. With it t = 1 + e/2,
    and divided differences follow from the product rule (fg)[a, b] = f(a) g[a, b] + f[a, b] g(b) and the chain rule
    m[a, b] ← m[a, b] (3(e_a + e_b) + e_a² + e_a e_b + e_b²)/4. No large numbers appear: z itself grows as 1.5^k at 0.
    """

    def __init__(self, iterations: int, *, inverse: bool = False) -> None:
        self.iterations = iterations
        self.inverse = inverse

    def value(self, x: Tensor) -> Tensor:
        m, result = x, torch.ones_like(x) if self.inverse else x
        for _ in range(self.iterations):
            t = 1.5 - 0.5 * m
            m, result = m * t * t, result * t
        return result

    def slope(self, a: Tensor, b: Tensor) -> Tensor:
        low, high = torch.minimum(a, b), torch.maximum(a, b)
        many = self.iterations > MOST_ITERATIONS
        safe = torch.where(high > 0, high, 1.0) if many else high  # 1.5^k between zeros would multiply rounding errors
        result = self._slope(low, safe)
        return torch.where(high > 0, result, 0.0) if many else result

    def _slope(self, low: Tensor, high: Tensor) -> Tensor:
        rise = torch.ones_like(low)  # m[a, b]
        value, result = (torch.ones_like(low), torch.zeros_like(low)) if self.inverse else (low, torch.ones_like(low))
        m, far = low, high
        e, d = 1 - m, 1 - far
        for _ in range(self.iterations):
            s, t = 1 + 0.5 * e, 1 + 0.5 * d
            result = result * t - 0.5 * value * rise
            rise = rise * (0.25 * (3 * (e + d) + e * e + e * d + d * d))
            m, far, value = m * s * s, far * t * t, value * s
            e, d = _rest(m, e), _rest(far, d)
        return result

    def slopes(self, x: Tensor) -> Tensor:
        # Only what belongs to a pair is computed for every pair, in place: a row is a, a column b, as in `_slope`.
        value, m = torch.ones_like(x).unsqueeze(-1) if self.inverse else x.unsqueeze(-1), x.unsqueeze(-1)
        e = 1 - m
        result = rise = (0.0 if self.inverse else 1.0) * (1 + 0.5 * e).mT - 0.5 * value  # after one iteration
        for i in range(self.iterations):
            t = 1 + 0.5 * e
            if i > 0:
                result.mul_(t.mT).addcmul_(value, rise, value=-0.5)
            if i < self.iterations - 1:
                part = 0.25 * e * (3 + e)
                growth = (part + part.mT).addcmul_(e, e.mT, value=0.25)
                rise = rise.mul_(growth) if i > 0 else growth
            m, value = m * t * t, value * t
            e = _rest(m, e)
        a, b = x.unsqueeze(-1), x.unsqueeze(-2)
        result = torch.where(a <= b, result, result.mT)  # a is the smaller one
        return torch.where((a > 0) | (b > 0), result, 0.0) if self.iterations > MOST_ITERATIONS else result

    def half_curvature(self, x: Tensor) -> Tensor:
        def times(f: Jet, g: Jet) -> Jet:  # Taylor coefficients
            return f[0] * g[0], f[0] * g[1] + f[1] * g[0], f[0] * g[2] + f[1] * g[1] + f[2] * g[0]

        one, zero = torch.ones_like(x), torch.zeros_like(x)
        m: Jet = (x, one, zero)
        result: Jet = (one, zero, zero) if self.inverse else m
        for _ in range(self.iterations):
            t = 1.5 - 0.5 * m[0], -0.5 * m[1], -0.5 * m[2]
            m, result = times(times(m, t), t), times(result, t)
        return result[2]


def _rest(m: Tensor, e: Tensor) -> Tensor:
    """1 − m after an iteration, from m where it is small and from the last 1 − m elsewhere."""
    return torch.where(m < 0.5, 1 - m, 0.25 * e * e * (3 + e))


class NewtonSchulzSqrt(MatrixFunction):
    """q(C) = √(tr C) · Y_k(C / tr C): see `polycov.functional.newton_schulz`."""

    degree = 0.5

    def __init__(self, iterations: int = 5) -> None:
        super().__init__()
        self.iterations = positive_int("sqrt", "iterations", iterations)
        self.products = count_products(self.iterations) if self.iterations <= MOST_ITERATIONS else None
        self.slope_steps = self.iterations
        self.wide = 1.5**self.iterations > MOST_GROWTH
        self.has_rectangular = self.products is not None

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        if algorithm == "eigenvalues":
            return spectral(matrix, NewtonSchulzEigenvalues(self.iterations))
        return newton_schulz(matrix, self.iterations)

    def rectangular(self, matrix: Tensor) -> Tensor:
        """M (MᵀM)^(−¼), the inverse root by k iterations of the root by k iterations: a polynomial of MᵀM."""

        def inverse_fourth_root(gram: Tensor) -> Tensor:
            return newton_schulz(newton_schulz(gram, self.iterations), self.iterations, inverse=True)

        return times_gram(matrix, inverse_fourth_root)

    def quotient(self, gram: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        if algorithm == "products":
            return newton_schulz(gram, self.iterations, inverse=True)
        if self.products is None:  # z_k(0) = 1.5^k would amplify rounding errors
            return spectral(gram, Quotient(NewtonSchulzEigenvalues(self.iterations)))
        return spectral(gram, NewtonSchulzEigenvalues(self.iterations, inverse=True))

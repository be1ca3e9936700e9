"""The square root by coupled Newton–Schulz iteration: a polynomial of the matrix, computed with products alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from polycov.errors import positive_int
from polycov.pooling.functions.base import MatrixFunction, times_gram
from polycov.pooling.functions.composition import Factor, compose
from polycov.pooling.functions.composition import count_products as count_products_of
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
            the iteration of a singular matrix diverges beyond k ≈ 15 in float32 and 40 in float64.
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
    return count_products_of([len(c) - 1 for c in _factors(iterations)])


# With more iterations than this, rounding errors on a singular matrix grow too large, and only eigenvalues work.
MOST_ITERATIONS = 12

Jet = tuple[Tensor, Tensor, Tensor]
Product = Callable[[Jet, Jet], Jet]


class NewtonSchulzEigenvalues(ScalarFunction):
    """y_k(x), or z_k(x) with ``inverse``: the iteration on one eigenvalue.

    Divided differences follow from the product rule (fg)[a, b] = f(a) g[a, b] + f[a, b] g(b), which subtracts no
    nearly equal numbers.
    """

    def __init__(self, iterations: int, *, inverse: bool = False) -> None:
        self.iterations = iterations
        self.inverse = inverse

    def value(self, x: Tensor) -> Tensor:
        y, z = x, torch.ones_like(x)
        for _ in range(self.iterations):
            t = 1.5 - 0.5 * z * y
            y, z = y * t, z * t
        return z if self.inverse else y

    def slope(self, a: Tensor, b: Tensor) -> Tensor:
        def times(f: Jet, g: Jet) -> Jet:  # f(a), f(b), f[a, b]
            return f[0] * g[0], f[1] * g[1], torch.addcmul(f[0] * g[2], f[2], g[1])

        one, zero = torch.ones((), dtype=a.dtype, device=a.device), torch.zeros((), dtype=a.dtype, device=a.device)
        return self._iterate((a, b, one), (one, one, zero), times, (1.5, 1.5, 0.0))[2]

    def half_curvature(self, x: Tensor) -> Tensor:
        def times(f: Jet, g: Jet) -> Jet:  # Taylor coefficients
            return f[0] * g[0], f[0] * g[1] + f[1] * g[0], f[0] * g[2] + f[1] * g[1] + f[2] * g[0]

        one, zero = torch.ones_like(x), torch.zeros_like(x)
        return self._iterate((x, one, zero), (one, zero, zero), times, (1.5, 0.0, 0.0))[2]

    def _iterate(self, y: Jet, z: Jet, times: Product, three_halves: tuple[float, float, float]) -> Jet:
        for _ in range(self.iterations):
            m = times(z, y)
            t = three_halves[0] - 0.5 * m[0], three_halves[1] - 0.5 * m[1], three_halves[2] - 0.5 * m[2]
            y, z = times(y, t), times(z, t)
        return z if self.inverse else y


class NewtonSchulzSqrt(MatrixFunction):
    """q(C) = √(tr C) · Y_k(C / tr C): see `polycov.functional.newton_schulz`."""

    degree = 0.5

    def __init__(self, iterations: int = 5) -> None:
        super().__init__()
        self.iterations = positive_int("sqrt", "iterations", iterations)
        self.products = count_products(self.iterations) if self.iterations <= MOST_ITERATIONS else None
        self.slope_steps = self.iterations
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

"""The square root by coupled Newton–Schulz iteration: a polynomial of the matrix, computed with products alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polycov.errors import positive_int
from polycov.pooling.functions.base import MatrixFunction
from polycov.pooling.functions.spectral import Quotient, ScalarFunction, spectral
from polycov.pooling.plan import Algorithm
from polycov.pooling.transforms import SampleFunction, add_product, call, may_be_differentiated


class _Step(NamedTuple):
    """The matrices of one step, of one or two iterations, that the derivative needs. All are polynomials of A."""

    matrix: Tensor  # M, which converges to I
    square: Tensor | None  # M²; None for a single iteration
    factor: Tensor  # G
    before: Tensor | None  # the result before the step, P; None for the identity
    after: Tensor  # P G
    power: Tensor | None  # G², if it was computed


def _iterate(matrix: Tensor, iterations: int, inverse: bool, tape: list[_Step] | None = None) -> Tensor:
    """Runs the iteration, two at a time, and appends to the tape what the derivative needs.

    With M = Z Y an iteration is T = (3I − M)/2, Y ← Y T, Z ← Z T, M ← M T². Two of them multiply Y and Z by
    G = T(M) T(M T(M)²) = (36 I − 39 M + 27 M² − 9 M³ + M⁴)/16, which takes two products.
    """
    sizes = [2] * (iterations // 2) + [1] * (iterations % 2)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    current, result = matrix, None if inverse else matrix
    for i, size in enumerate(sizes):
        square = None
        if size == 1:
            factor = torch.add(1.5 * eye, current, alpha=-0.5)
        else:
            square = current @ current
            rest = torch.add(36 / 16 * eye, torch.add(square, current, alpha=-13 / 9), alpha=27 / 16)
            factor = add_product(rest, torch.add(square, current, alpha=-9), square, 1 / 16)
        after = factor if result is None else result @ factor
        last, first = i == len(sizes) - 1, i == 0 and not inverse
        power = None if last or first else factor @ factor
        if tape is not None:
            tape.append(_Step(current, square, factor, result, after, power))
        if not last:  # M G²; the first M is A, so it is the result times G
            current = after @ factor if power is None else current @ power
        result = after
    return matrix if result is None else result


def _tangent(tape: list[_Step], direction: Tensor, inverse: bool) -> Tensor:
    """The derivative of `_iterate` in a symmetric direction; that of a square takes one product and its transpose."""
    current, result = direction, None if inverse else direction
    for i, step in enumerate(tape):
        if step.square is None:
            factor = -0.5 * current
        else:
            half = current @ step.matrix
            square = half + half.mT
            left = torch.add(step.square, step.matrix, alpha=-9)
            factor = torch.add(square, current, alpha=-13 / 9).mul_(27 / 16)
            factor = add_product(factor, torch.add(square, current, alpha=-9), step.square, 1 / 16)
            factor = add_product(factor, left, square, 1 / 16)
        if step.before is None or result is None:
            after = factor
        else:
            after = add_product(result @ step.factor, step.before, factor)
        if i < len(tape) - 1:
            if step.power is None:
                current = add_product(after @ step.factor, step.after, factor)
            else:
                half = factor @ step.factor
                current = add_product(current @ step.power, step.matrix, half + half.mT)
        result = after
    return direction if result is None else result


class _NewtonSchulz(SampleFunction):
    """The derivative of a polynomial of a symmetric matrix is self-adjoint, so the backward pass is the derivative in
    the direction of the gradient. It takes half the products of autograd, and stores nothing but the tape.

    The forward pass fills the tape that it is given. Inside `torch.func` it stays empty, and is computed again.
    """

    @staticmethod
    def forward(matrix: Tensor, iterations: int, inverse: bool, tape: list[_Step] | None) -> Tensor:
        return _iterate(matrix, iterations, inverse, tape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        matrix, ctx.iterations, ctx.inverse, tape = inputs
        ctx.save_for_backward(matrix, *[tensor for step in tape or [] for tensor in step])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _NewtonSchulz.tangent(ctx, grad), None, None, None

    @staticmethod
    def tangent(ctx: Any, direction: Tensor, *_: None) -> Tensor:
        matrix, *saved = ctx.saved_tensors
        size = len(_Step._fields)
        tape = [_Step(*saved[i : i + size]) for i in range(0, len(saved), size)]
        if not tape or may_be_differentiated(matrix):  # the saved tape has no derivatives
            tape = []
            _iterate(matrix, ctx.iterations, ctx.inverse, tape)
        return _tangent(tape, 0.5 * (direction + direction.mT), ctx.inverse)


def newton_schulz(matrix: Tensor, iterations: int = 5, *, inverse: bool = False) -> Tensor:
    """Returns Y_k ≈ A^(1/2), or Z_k ≈ A^(−1/2), after k iterations.

    Y₀ = A, Z₀ = I, T = ½(3I − Z Y), Y ← Y T, Z ← T Z. Both are polynomials of A, and Y_k = A Z_k. Iterations are done
    in pairs, which takes 10 products for k = 5 instead of 15.

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
    if torch.compiler.is_compiling():  # torch 2.6 compiles a Function with a tape to wrong gradients
        return _iterate(matrix, iterations, inverse)
    tape: list[_Step] | None = [] if torch.is_grad_enabled() and matrix.requires_grad else None
    result: Tensor = call(_NewtonSchulz, matrix, iterations, inverse, tape)
    return result


def count_products(iterations: int) -> int:
    """Returns the number of matrix products in `newton_schulz`.

    Example:
        >>> [count_products(k) for k in (1, 2, 3, 4, 5, 6)]
        [1, 3, 5, 7, 10, 12]
    """
    pairs, single = divmod(iterations, 2)
    if pairs == 0 or iterations == 2:
        return 2 * pairs + 1
    return 5 * pairs if single else 5 * pairs - 3


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

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        if algorithm == "eigenvalues":
            return spectral(matrix, NewtonSchulzEigenvalues(self.iterations))
        return newton_schulz(matrix, self.iterations)

    def quotient(self, gram: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        if algorithm == "products":
            return newton_schulz(gram, self.iterations, inverse=True)
        if self.products is None:  # z_k(0) = 1.5^k would amplify rounding errors
            return spectral(gram, Quotient(NewtonSchulzEigenvalues(self.iterations)))
        return spectral(gram, NewtonSchulzEigenvalues(self.iterations, inverse=True))

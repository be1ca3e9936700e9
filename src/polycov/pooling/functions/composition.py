"""Compositions of odd polynomials that bring the roots of eigenvalues to 1: A^(1/2) and A^(−1/2) with few products."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.pooling.symmetric import Symmetric, anticommutator, combine, cut, join, product
from polycov.pooling.transforms import SampleFunction, call, may_be_differentiated

Factor = tuple[float, ...]  # the coefficients of t, of degree 1, 2 or 4
DEGREES = (1, 2, 4)
LARGE = 32.0  # the ratio of a coefficient to the leading one from which completing the square would cost digits


class _Step(NamedTuple):
    """The matrices of one step that the derivative needs. All are polynomials of A."""

    matrix: Symmetric  # M, which converges to I
    square: Symmetric | None  # N = M² + e M; None for a factor of degree 1
    factor: Symmetric  # t(M)
    before: Symmetric | None  # the result before the step, P; None for the identity
    after: Symmetric  # P t(M)
    power: Symmetric | None  # t(M)², if it was computed


class _Scheme(NamedTuple):
    """How to compute t(M) = (f N + d M) N + a N + b M + c₀ with N = M² + e M.

    Completing the square, e = c₃/2c₄ and d = 0, takes fewer passes over the matrix, and half a product less in the
    derivative. Where the leading coefficient is so small that large terms would cancel, e is 0.
    """

    e: float
    f: float
    d: float
    a: float
    b: float


def _scheme(c: Factor) -> _Scheme:
    small = c[-1] == 0 or abs(c[-2]) > LARGE * abs(c[-1])
    if len(c) == 3:
        return _Scheme(0.0, 0.0, 0.0, c[2], c[1]) if small else _Scheme(c[1] / c[2], 0.0, 0.0, c[2], 0.0)
    if small:
        return _Scheme(0.0, c[4], c[3], c[2], c[1])
    e = c[3] / (2 * c[4])
    a = c[2] - c[4] * e * e
    return _Scheme(e, c[4], 0.0, a, c[1] - a * e)


def _evaluate(c: Factor, matrix: Symmetric) -> tuple[Symmetric | None, Symmetric]:
    """N, if there is one, and t(M)."""
    if len(c) == 2:
        return None, combine(c[0], (c[1], matrix))
    e, f, d, a, b = _scheme(c)
    square = product(matrix, matrix, matrix, e) if e else product(matrix, matrix)
    low = combine(c[0], (a, square), *([(b, matrix)] if b else []))
    if d:
        return square, product(combine(0.0, (f, square), (d, matrix)), square, low)
    return square, product(square, square, low, factor=f) if f else low


def _iterate(matrix: Tensor, factors: Sequence[Factor], inverse: bool, tape: list[_Step] | None = None) -> Tensor:
    """Runs the steps, and appends to the tape what the derivative needs."""
    current = cut(matrix)
    result = None if inverse else current
    for i, c in enumerate(factors):
        square, factor = _evaluate(c, current)
        after = factor if result is None else product(result, factor)
        last, first = i == len(factors) - 1, i == 0 and not inverse
        power = None if last or first else product(factor, factor)
        if tape is not None:
            tape.append(_Step(current, square, factor, result, after, power))
        if not last:  # M t²; the first M is A, so it is the result times t
            current = product(after, factor) if power is None else product(current, power)
        result = after
    return matrix if result is None else join(result)


def _slope(c: Factor, step: _Step, current: Symmetric) -> Symmetric:
    """The derivative of t(M) in the direction ``current``."""
    if step.square is None:
        return combine(0.0, (c[1], current))
    e, f, d, a, b = _scheme(c)
    square = anticommutator(step.matrix, current, current, e) if e else anticommutator(step.matrix, current)
    if not (f or d):
        return combine(0.0, (a, square), *([(b, current)] if b else []))
    if not d:
        return anticommutator(combine(a / 2, (f, step.square)), square, current, b)
    low = combine(0.0, (a, square), (b, current))
    low = product(combine(0.0, (f, square), (d, current)), step.square, low)
    return product(combine(0.0, (f, step.square), (d, step.matrix)), square, low)


def _tangent(tape: list[_Step], factors: Sequence[Factor], direction: Tensor, inverse: bool) -> Tensor:
    """The derivative of `_iterate` in the direction of the symmetric part of a matrix."""
    current = cut(direction, symmetrize=True)
    result = None if inverse else current
    for i, (step, c) in enumerate(zip(tape, factors, strict=True)):
        factor = _slope(c, step, current)
        if step.before is None or result is None:
            after = factor
        else:
            after = product(step.before, factor, product(result, step.factor))
        if i < len(tape) - 1:
            if step.power is None:
                current = product(step.after, factor, product(after, step.factor))
            else:
                power = anticommutator(factor, step.factor)
                current = product(step.matrix, power, product(current, step.power))
        result = after
    return direction if result is None else join(result)


def _pack(tape: list[_Step]) -> Iterator[Tensor | None]:
    """The blocks of all matrices, None for those of a matrix that does not exist."""
    for step in tape:
        for part in step:
            yield from [None] * len(step.matrix.blocks) if part is None else part.blocks


def _unpack(tensors: Sequence[Tensor | None], count: int) -> list[_Step]:
    size = count * (count + 1) // 2
    groups = [[x for x in tensors[i : i + size] if x is not None] for i in range(0, len(tensors), size)]
    parts: list[Any] = [Symmetric(group, count) if group else None for group in groups]
    width = len(_Step._fields)
    return [_Step(*parts[i : i + width]) for i in range(0, len(parts), width)]


class _Composition(SampleFunction):
    """The derivative of a polynomial of a symmetric matrix is self-adjoint, so the backward pass is the derivative in
    the direction of the gradient. It takes half the products of autograd, and stores nothing but the tape.

    The forward pass fills the tape that it is given. Inside `torch.func` it stays empty, and is computed again.
    """

    @staticmethod
    def forward(matrix: Tensor, factors: Sequence[Factor], inverse: bool, tape: list[_Step] | None) -> Tensor:
        return _iterate(matrix, factors, inverse, tape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        matrix, ctx.factors, ctx.inverse, tape = inputs
        ctx.count = tape[0].matrix.count if tape else 0
        ctx.save_for_backward(matrix, *_pack(tape or []))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _Composition.tangent(ctx, grad), None, None, None

    @staticmethod
    def tangent(ctx: Any, direction: Tensor, *_: None) -> Tensor:
        matrix, *saved = ctx.saved_tensors
        tape = _unpack(saved, ctx.count) if ctx.count else []
        if not tape or may_be_differentiated(matrix):  # the saved tape has no derivatives
            tape = []
            _iterate(matrix, ctx.factors, ctx.inverse, tape)
        return _tangent(tape, ctx.factors, direction, ctx.inverse)


def compose(matrix: Tensor, factors: Sequence[Factor], *, inverse: bool = False) -> Tensor:
    """Returns A t₁(M₁) t₂(M₂) … ≈ A^(1/2), or t₁(M₁) t₂(M₂) … ≈ A^(−1/2).

    M₁ = A and M ← M t(M)². With s = √λ of an eigenvalue of M, a step is the odd polynomial s ← s t(s²), and if the
    steps bring s to 1, then M converges to I, the product of the factors to A^(−1/2), and A times it to A^(1/2). All
    matrices are polynomials of A: they commute, so products of them are symmetric, and only a part of each is computed
    (`polycov.pooling.symmetric`).

    Args:
        matrix: symmetric A, (B, C, C).
        factors: the coefficients (t₀, t₁, …) of each t, of degree 1, 2 or 4 in M.
        inverse: return the approximation of A^(−1/2).

    Returns:
        (B, C, C). The gradient assumes that A is symmetric, and is symmetric.

    Example:
        >>> compose(torch.tensor([[[0.81]]]), [(1.5, -0.5), (1.5, -0.5)])
        tensor([[[0.8997]]])
    """
    factors = [tuple(map(float, c)) for c in factors]
    if any(len(c) - 1 not in DEGREES for c in factors):
        raise PolycovError(f"Expected factors of degree 1, 2 or 4, got {[len(c) - 1 for c in factors]}.")
    if torch.compiler.is_compiling():  # torch 2.6 compiles a Function with a tape to wrong gradients
        return _iterate(matrix, factors, inverse)
    tape: list[_Step] | None = [] if torch.is_grad_enabled() and matrix.requires_grad else None
    result: Tensor = call(_Composition, matrix, factors, inverse, tape)
    return result


def composed_products(degrees: Sequence[int]) -> int:
    """Returns the number of matrix products in `compose` for factors of these degrees.

    M², t(M), the result times t, t², M t²: a factor of degree 4 takes five products, one of degree 2 four, one of
    degree 1 three. The last step needs no M, and the first no t².

    Example:
        >>> composed_products([2, 2]), composed_products([4, 4, 1])
        (5, 10)
    """
    total = sum({1: 3, 2: 4, 4: 5}[degree] for degree in degrees)
    return total - 2 - (len(degrees) > 1)

"""Functions on the eigenvalues of a symmetric matrix: exact roots, powers and logarithms, with exact gradients.

For f(A) = V f(λ) Vᵀ the derivative in direction E is V (Δ ∘ VᵀEV) Vᵀ, where Δ_ij is the divided difference
f[λi, λj] = (f(λi) − f(λj)) / (λi − λj). Each scalar function computes it without dividing by a difference of
eigenvalues, so repeated eigenvalues are harmless. The second derivative uses f[λi, λj, λk] in the same way.
"""

from typing import Any

import torch
from torch import Tensor

from polycov.pooling.functions.base import MatrixFunction, add_identity, times_gram
from polycov.pooling.functions.decompositions import eigh
from polycov.pooling.plan import Algorithm
from polycov.pooling.transforms import SampleFunction, call, without_zeros


class ScalarFunction:
    """A function of eigenvalues λ ≥ 0, with its divided differences.

    `slope` is 0 between two eigenvalues that are exactly 0, so that the gradient is finite where the derivative is not.
    """

    def value(self, x: Tensor) -> Tensor:
        """f(x)."""
        raise NotImplementedError

    def slope(self, a: Tensor, b: Tensor) -> Tensor:
        """f[a, b], with the limit f′(a) at a = b."""
        raise NotImplementedError

    def slopes(self, x: Tensor) -> Tensor:
        """f[xᵢ, xⱼ] of all pairs of eigenvalues, (B, C) → (B, C, C)."""
        return self.slope(x.unsqueeze(-1), x.unsqueeze(-2))

    def half_curvature(self, x: Tensor) -> Tensor:
        """f″(x) / 2."""
        raise NotImplementedError

    def bend(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """f[a, b, c]: the difference of slopes over the widest gap, or f″/2 where all three are nearly equal."""
        low, middle, high = torch.stack([a + 0 * (b + c), b + 0 * (a + c), c + 0 * (a + b)]).sort(0).values
        gap = high - low
        near = gap <= torch.finfo(gap.dtype).eps ** (1 / 3) * high
        wide = (self.slope(high, middle) - self.slope(middle, low)) / torch.where(near, 1.0, gap)
        mean = (low + middle + high) / 3
        curved = torch.where(mean > 0, self.half_curvature(torch.where(mean > 0, mean, 1.0)), 0.0)
        return torch.where(near, curved, wide)


def _log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """log(a / b) for positive a and b, accurate for a ≈ b too."""
    z = (a - b) / b
    near = z.abs() < 0.5
    return torch.where(near, torch.log1p(torch.where(near, z, 0.0)), a.log() - b.log())


class Power(ScalarFunction):
    """x^p for p > 0. With w = log(b/a) ≤ 0: f[a, b] = a^(p−1) expm1(pw) / expm1(w)."""

    def __init__(self, exponent: float) -> None:
        self.exponent = exponent

    def value(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def slope(self, a: Tensor, b: Tensor) -> Tensor:
        p = self.exponent
        low, high = torch.minimum(a, b), torch.maximum(a, b)
        positive = low > 0
        x, y = torch.where(positive, low, 1.0), torch.where(positive, high, 1.0)
        w = _log_ratio(x, y)
        ratio = torch.where(w < 0, torch.expm1(p * w) / torch.expm1(torch.where(w < 0, w, -1.0)), p)
        both = y ** (p - 1) * ratio
        one = torch.where(high > 0, torch.where(high > 0, high, 1.0) ** (p - 1), 0.0)
        return torch.where(positive, both, one)

    def half_curvature(self, x: Tensor) -> Tensor:
        p = self.exponent
        return 0.5 * p * (p - 1) * x ** (p - 2)


class Log(ScalarFunction):
    """log max(x, floor). With w = log(b/a) ≤ 0: f[a, b] = w / (a expm1(w)) above the floor."""

    def __init__(self, floor: float) -> None:
        self.floor = floor

    def value(self, x: Tensor) -> Tensor:
        return x.clamp(min=self.floor).log()

    def slope(self, a: Tensor, b: Tensor) -> Tensor:
        low, high = torch.minimum(a, b), torch.maximum(a, b)
        floored = low <= self.floor
        x, y = torch.where(floored, 1.0, low), torch.where(floored, 1.0, high)
        w = _log_ratio(x, y)
        smooth = torch.where(w < 0, w / torch.expm1(torch.where(w < 0, w, -1.0)), 1.0) / y
        rise = self.value(high) - self.value(low)  # 0 where both are below the floor
        return torch.where(floored, rise / torch.where(high > low, high - low, 1.0), smooth)

    def half_curvature(self, x: Tensor) -> Tensor:
        return torch.where(x > self.floor, -0.5 / x**2, 0.0)


class Quotient(ScalarFunction):
    """r(x) = (f(x) − f(0)) / x with r(0) = 0: the counterpart of f on the Gram side.

    Its slope follows from f[a, b] = a r[a, b] + r(b), with a ≥ b. The value r(0) is arbitrary, because the rows are
    orthogonal to the kernel of their Gram matrix.
    """

    def __init__(self, function: ScalarFunction) -> None:
        self.function = function

    def value(self, x: Tensor) -> Tensor:
        divisor = torch.where(x > 0, x, 1.0)
        return torch.where(x > 0, (self.function.value(x) - self.function.value(torch.zeros_like(x))) / divisor, 0.0)

    def slope(self, a: Tensor, b: Tensor) -> Tensor:
        low, high = torch.minimum(a, b), torch.maximum(a, b)
        divisor = torch.where(high > 0, high, 1.0)
        both = (self.function.slope(high, low) - self.value(low)) / divisor
        one = self.value(high) / divisor
        return torch.where(low > 0, both, one)

    def half_curvature(self, x: Tensor) -> Tensor:
        # r″ from (x r)″ = f″: x r″ + 2 r′ = f″
        return (self.function.half_curvature(x) - self.slope(x, x)) / x


# Smaller eigenvalues of a matrix of trace 1 are set to 0: slightly more than what rounding makes of a true 0.
FLOOR = {torch.float64: 4e-15, torch.float32: 1e-8}


def _sandwich(vectors: Tensor, inner: Tensor) -> Tensor:
    return vectors @ inner @ vectors.mT


class _Spectral(SampleFunction):
    """f(A) of symmetric A, and its eigenvalues and eigenvectors, which are constants to autograd."""

    @staticmethod
    def forward(matrix: Tensor, function: ScalarFunction) -> tuple[Tensor, Tensor, Tensor]:
        values, vectors = eigh(matrix)
        values = torch.where(values > FLOOR[values.dtype], values, 0.0)
        return (vectors * function.value(values).unsqueeze(-2)) @ vectors.mT, values, vectors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        matrix, ctx.function = inputs
        _, values, vectors = output
        ctx.mark_non_differentiable(values, vectors)
        ctx.save_for_backward(matrix, values, vectors)
        without_zeros(ctx)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, None]:
        return None if grad is None else call(_SpectralDerivative, *ctx.saved_tensors, grad, ctx.function), None

    @staticmethod
    def tangent(ctx: Any, direction: Tensor, _: None) -> tuple[Tensor, None, None]:
        return call(_SpectralDerivative, *ctx.saved_tensors, direction, ctx.function), None, None


class _SpectralDerivative(SampleFunction):
    """Df(A)[E]. The derivative is self-adjoint, so this is also the backward pass of f."""

    @staticmethod
    def forward(matrix: Tensor, values: Tensor, vectors: Tensor, direction: Tensor, function: ScalarFunction) -> Tensor:
        direction = 0.5 * (direction + direction.mT)
        return _sandwich(vectors, function.slopes(values) * (vectors.mT @ direction @ vectors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.function = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, Tensor, None]:
        *spectrum, direction = ctx.saved_tensors
        curved = call(_SpectralCurvature, *spectrum, direction, grad, ctx.function)
        return curved, None, None, call(_SpectralDerivative, *spectrum, grad, ctx.function), None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Any:
        *spectrum, direction = ctx.saved_tensors
        along_matrix, _, _, along_direction, _ = tangents
        curved = call(_SpectralCurvature, *spectrum, direction, along_matrix, ctx.function)
        return curved + call(_SpectralDerivative, *spectrum, along_direction, ctx.function)


class _SpectralCurvature(SampleFunction):
    """D²f(A)[E, H], with D²f(A)[E, H]_ij = Σ_k f[i, k, j] (E_ik H_kj + H_ik E_kj) in the basis of eigenvectors."""

    @staticmethod
    def forward(
        matrix: Tensor, values: Tensor, vectors: Tensor, first: Tensor, second: Tensor, function: ScalarFunction
    ) -> Tensor:
        e, h = (vectors.mT @ (0.5 * (x + x.mT)) @ vectors for x in (first, second))
        curved = torch.zeros_like(matrix)
        for k in range(values.shape[-1]):
            bend = function.bend(values.unsqueeze(-1), values[:, k, None, None], values.unsqueeze(-2))
            mixed = e[:, :, k, None] * h[:, None, k] + h[:, :, k, None] * e[:, None, k]
            curved = curved + bend * mixed
        return _sandwich(vectors, curved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("Functions of eigenvalues have two derivatives; a third is not implemented.")

    tangent = backward


def spectral(matrix: Tensor, function: ScalarFunction) -> Tensor:
    """Returns V f(λ) Vᵀ for symmetric positive semidefinite A = V λ Vᵀ of trace 1.

    Eigenvalues below 4e-15 (1e-8 in float32) are set to 0; the gradient, which may not exist there, is set to 0 within
    their subspace. Twice differentiable, even at repeated eigenvalues.

    Args:
        matrix: A, (B, C, C).
        function: f.

    Example:
        >>> spectral(torch.tensor([[[0.25, 0.0], [0.0, 0.75]]]), Power(0.5)).diagonal(dim1=1, dim2=2)
        tensor([[0.5000, 0.8660]])
    """
    result: Tensor = call(_Spectral, matrix, function)[0]
    return result


class SpectralFunction(MatrixFunction):
    """A scalar function of the eigenvalues, on the covariance or the Gram side."""

    products = None
    wide = True

    def __init__(self, function: ScalarFunction, degree: float = 0.0) -> None:
        super().__init__()
        self.function = function
        self.degree = degree

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return spectral(matrix, self.function)

    def quotient(self, gram: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return spectral(gram, Quotient(self.function))


class SpectralPower(SpectralFunction):
    """C^p by eigendecomposition: see `polycov.functional.matrix_power`.

    On the singular values of M it is M (MᵀM)^((p−1)/2), for the root M (MᵀM)^(−¼). The second factor is the quotient of
    x^((p+1)/2), which maps singular values 0 to 0.
    """

    has_rectangular = True

    def __init__(self, exponent: float) -> None:
        super().__init__(Power(exponent), exponent)

    def rectangular(self, matrix: Tensor) -> Tensor:
        return times_gram(matrix, lambda gram: spectral(gram, Quotient(Power((self.degree + 1) / 2))))


class SpectralLog(SpectralFunction):
    """log C by eigendecomposition: see `polycov.functional.matrix_log`."""

    def __init__(self, floor: float = 1e-6) -> None:
        super().__init__(Log(floor))

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return add_identity(super().forward(matrix, root, algorithm), 2 * root.log())

    def constant(self, root: Tensor) -> Tensor:
        return 2 * root.log() + self.function.value(torch.zeros_like(root))

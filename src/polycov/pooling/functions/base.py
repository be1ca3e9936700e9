"""The interface of matrix functions."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polycov.errors import NonFiniteError, PolycovError
from polycov.pooling.plan import Algorithm, choose_algorithm, choose_dtype
from polycov.pooling.transforms import is_readable, needs_gradient

# A polynomial that multiplies eigenvalues near 0 by more is computed in float64: seven Newton–Schulz iterations.
MOST_GROWTH = 1.5**7


class MatrixFunction(nn.Module):
    """A function q of the second-order statistic C, in terms of A = C / tr C.

    A pool passes A, whose eigenvalues lie in [0, 1], and ``root`` = √(tr C), and computes
    ``q(C) = (tr C) ** degree · forward(A, root, algorithm)``. With the Gram matrix S = rows rowsᵀ the same function is
    ``constant(root) · I + rowsᵀ quotient(S, root, algorithm) rows``, since q(x) = b + x·r(x).

    A subclass must define ``products``; the plan (`polycov.pooling.plan`) decides on the algorithm.

    Attributes:
        degree: the power of the trace that `forward` leaves to the pool; 0 if none.
        products: the number of matrix products; None if the function can only be computed on eigenvalues.
        slope_steps: see `polycov.pooling.plan.Priced`; None if there is only one algorithm.
        routes: the routes that exist for the function.
        wide: whether the function is computed in float64, also for features in float32: where the forward or backward
            pass takes an eigendecomposition, or small eigenvalues are multiplied by more than `MOST_GROWTH`. The root
            of an eigenvalue that is 0 but for rounding is wrong by √eps, 3e-4 in float32, and its gradient entirely.
            No shape rules that out: channels may be duplicates, or a mean large compared with the spread.
        approximate_gradient: whether the gradient is that of a limit, and not of what `forward` returns.
        has_rectangular: whether `rectangular` exists, for cross moments.
    """

    degree: float = 0.0
    products: int | None
    slope_steps: int | None = None
    routes: tuple[str, ...] = ("covariance", "gram", "paper")
    wide: bool = False
    approximate_gradient: bool = False
    has_rectangular: bool = False

    def __init__(self) -> None:
        super().__init__()

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        """Returns f(A) for symmetric A of trace 1, (B, C, C), and root = √(tr C), (B,)."""
        raise NotImplementedError

    def quotient(self, gram: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor | None:
        """Returns r(S), (B, N, N), or None for r = 1."""
        raise NotImplementedError

    def quotient_values(self, points: Tensor, spectrum: Tensor, root: Tensor) -> Tensor:
        """Returns r at points, (B, K), for a matrix with the eigenvalues ``spectrum``, (B, C); norms depend on it."""
        algorithm: Algorithm = "eigenvalues" if self.products is None else "products"
        single = points.reshape(-1, 1, 1)
        values = self.quotient(single, root.repeat_interleave(points.shape[-1]), algorithm)
        return torch.ones_like(points) if values is None else values.reshape(points.shape)

    def constant(self, root: Tensor) -> Tensor | None:
        """Returns b, (B,), or None for b = 0."""
        return None

    def explained(self) -> "MatrixFunction":
        """Returns a function with the same values that has a `quotient`, which explanations need.

        Raises:
            PolycovError: if there is none.
        """
        if "gram" in self.routes:
            return self
        raise PolycovError(
            f"There is no exact explanation of {type(self).__name__}: its feature is not a sum over locations. Use a "
            "function such as sqrt(5)."
        )

    def rectangular(self, matrix: Tensor) -> Tensor:
        """Returns f on the singular values of M, (B, C₁, C₂), of norm 1: f(M) = M g(MᵀM) with g(s²) = f(s)/s."""
        raise NotImplementedError


def times_gram(matrix: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns M g(MᵀM) = g(MMᵀ) M, (B, C₁, C₂), on the smaller side."""
    if matrix.shape[-2] < matrix.shape[-1]:
        return function(matrix @ matrix.mT) @ matrix
    return matrix @ function(matrix.mT @ matrix)


def add_identity(matrix: Tensor, constant: Tensor | None) -> Tensor:
    """Returns ``matrix + constant · I`` with one constant per sample, (B,)."""
    if constant is None:
        return matrix
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return matrix + constant[:, None, None] * eye


def split_trace(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns A = C / tr C, tr C and √(tr C), (B,), of symmetric positive semidefinite C, (B, C, C).

    A zero matrix stays zero, with a gradient of 0. Its root is computed from the smallest normal number, so that its
    logarithm is finite and its powers are nearly 0.
    """
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    zero = trace == 0
    safe = torch.where(zero, 1.0, trace)
    return matrix / safe[:, None, None], safe, torch.where(zero, torch.finfo(trace.dtype).tiny, safe).sqrt()


def apply_function(function: MatrixFunction, matrix: Tensor) -> Tensor:
    """Returns q(C) for symmetric positive semidefinite C, (B, C, C), as a pool computes it.

    Raises:
        PolycovError: if the shape is wrong.
        NonFiniteError: if the trace of a matrix is negative, NaN or Inf.
    """
    if matrix.ndim != 3 or matrix.shape[1] != matrix.shape[2]:
        raise PolycovError(f"Expected matrices of shape (B, C, C), got {tuple(matrix.shape)}.")
    dtype = matrix.dtype
    unit, _, root = split_trace(matrix.to(choose_dtype(function, dtype)))
    if is_readable(root) and not bool(root.isfinite().all()):
        raise NonFiniteError("Expected positive semidefinite matrices, got a trace that is negative, NaN or Inf.")
    algorithm = choose_algorithm(function, matrix.shape[-1], matrix.device.type, needs_gradient(matrix))
    return ((root ** (2 * function.degree))[:, None, None] * function(unit, root, algorithm)).to(dtype)

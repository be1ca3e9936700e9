"""Roots of a covariance as published elsewhere, written from their formulas: what gradients are compared with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TERMS = 9  # of the geometric series in the gradient of SVD-Taylor
LARGEST = 1e4  # of 1/(λi − λj) in the gradient of SVD-Clip


def eigh_root(matrix: Tensor) -> Tensor:
    """Returns V √λ Vᵀ, with the gradient that autograd derives from `torch.linalg.eigh`."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)) @ vectors.mT


def svd_root(matrix: Tensor) -> Tensor:
    """Returns U √S Vᵀ, with the gradient that autograd derives from `torch.linalg.svd`."""
    left, values, right = torch.linalg.svd(matrix)
    return (left * values.sqrt().unsqueeze(-2)) @ right


class _Eigen(torch.autograd.Function):
    """V √λ Vᵀ with the gradient of an eigendecomposition, for one choice of K_ij ≈ 1/(λi − λj).

    With G the gradient of the root: G_V = 2 G V √λ, G_λ = diag(Vᵀ G V) / (2√λ), and that of the matrix is the symmetric
    part of V (K ∘ VᵀG_V + diag G_λ) Vᵀ. Eigenvalues below the rounding error of the largest are dropped.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, kernel: Callable[[Tensor], Tensor]) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        keep = values > torch.finfo(values.dtype).eps * values.amax(-1, keepdim=True)
        values = torch.where(keep, values, 0.0)
        ctx.kernel = kernel
        ctx.save_for_backward(values, vectors)
        return (vectors * values.sqrt().unsqueeze(-2)) @ vectors.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        values, vectors = ctx.saved_tensors
        roots = values.sqrt()
        inner = vectors.mT @ (0.5 * (grad + grad.mT)) @ vectors
        along = torch.where(roots > 0, 0.5 / torch.where(roots > 0, roots, 1.0), 0.0)
        full = ctx.kernel(values) * (2 * inner * roots.unsqueeze(-2))
        full = full + torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1) * along)
        result = vectors @ full @ vectors.mT
        return 0.5 * (result + result.mT), None


def _differences(values: Tensor) -> Tensor:
    """λj − λi, with i the row, so that V (K ∘ VᵀG_V) Vᵀ has K_ij = 1/(λj − λi)."""
    return values.unsqueeze(-2) - values.unsqueeze(-1)


def _plain(values: Tensor) -> Tensor:
    inverse = 1 / _differences(values)
    return torch.where(inverse.isfinite(), inverse, 0.0)


def _clipped(values: Tensor) -> Tensor:
    return _plain(values).clamp(-LARGEST, LARGEST)


def _taylor(values: Tensor) -> Tensor:
    """1/(λj − λi) = 1/λj · Σ (λi/λj)^k for λj > λi, cut after some terms."""
    low, high = (f(values.unsqueeze(-1), values.unsqueeze(-2)) for f in (torch.minimum, torch.maximum))
    ratio = low / torch.where(high > 0, high, 1.0)
    series = sum((ratio**k for k in range(1, TERMS + 1)), torch.ones_like(ratio))
    size = torch.where(high > 0, series / torch.where(high > 0, high, 1.0), 0.0)
    rank = torch.arange(values.shape[-1], device=values.device)  # eigenvalues ascend
    return size * (rank - rank.unsqueeze(-1)).sign()


def mpn_cov_root(matrix: Tensor) -> Tensor:
    """MPN-COV (Li, Xie, Wang, Zuo, ICCV 2017): K = 1/(λi − λj), and 0 where that is infinite."""
    result: Tensor = _Eigen.apply(matrix, _plain)
    return result


def svd_clip_root(matrix: Tensor) -> Tensor:
    """SVD-Clip, as in Song, Sebe, Wang, ICCV 2021: K cut to a bound, here ±1e4 for eigenvalues of sum 1 or less."""
    result: Tensor = _Eigen.apply(matrix, _clipped)
    return result


def svd_taylor_root(matrix: Tensor) -> Tensor:
    """SVD-Taylor (Song, Sebe, Wang, ICCV 2021): K by nine terms of the geometric series."""
    result: Tensor = _Eigen.apply(matrix, _taylor)
    return result


class _Lyapunov(torch.autograd.Function):
    """√A by an eigendecomposition, with the gradient that solves Q L + L Q = G in its eigenvectors."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        roots = values.clamp(min=0).sqrt()
        ctx.save_for_backward(roots, vectors)
        return (vectors * roots.unsqueeze(-2)) @ vectors.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        roots, vectors = ctx.saved_tensors
        total = roots.unsqueeze(-1) + roots.unsqueeze(-2)
        inner = vectors.mT @ (0.5 * (grad + grad.mT)) @ vectors
        return vectors @ (inner / total.clamp(min=torch.finfo(total.dtype).eps)) @ vectors.mT


def lyapunov_root(matrix: Tensor) -> Tensor:
    """Improved bilinear pooling (Lin, Maji, BMVC 2017): the Lyapunov equation, in the precision of the features."""
    result: Tensor = _Lyapunov.apply(matrix)
    return result


def newton_schulz_root(matrix: Tensor, iterations: int) -> Tensor:
    """iSQRT-COV (Li, Xie, Wang, Gao, CVPR 2018): the iteration as printed, differentiated by autograd."""
    trace = matrix.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]
    return unrolled(matrix / trace, iterations) * trace.sqrt()


def unrolled(matrix: Tensor, iterations: int) -> Tensor:
    """The Newton–Schulz iteration as printed, three products each, on matrices of trace 1."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    y, z = matrix, eye
    for _ in range(iterations):
        t = 0.5 * (3.0 * eye - z @ y)
        y, z = y @ t, t @ z
    return y

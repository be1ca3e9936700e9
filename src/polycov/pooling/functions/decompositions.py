"""Decompositions of batches in which one bad matrix does not spoil the others."""

import torch
from torch import Tensor

from polycov.pooling.functions.threads import count_parts, in_threads


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the eigenvalues (B, C) and eigenvectors (B, C, C) of symmetric matrices (B, C, C) of trace 1 or so.

    The eigenvectors of a matrix with NaN or Inf are NaN; torch raises an error for the whole batch. torch also gives
    LAPACK one matrix after another, and more cores hardly help with one; here each core has its part of the batch.

    Example:
        >>> values, vectors = eigh(torch.tensor([[[2.0]], [[torch.nan]]]))
        >>> values.flatten(), vectors.isnan().flatten()
        (tensor([2., 0.]), tensor([False,  True]))
    """
    parts = count_parts(matrix)
    if parts == 1:
        return _eigh(matrix)
    values, vectors = matrix.new_empty(matrix.shape[:2]), matrix.new_empty(matrix.shape).mT  # as LAPACK returns them

    def decompose(part: Tensor, own_values: Tensor, own_vectors: Tensor) -> None:
        found_values, found_vectors = _eigh(part)
        own_values.copy_(found_values)
        own_vectors.copy_(found_vectors)

    in_threads(decompose, *(x.detach().tensor_split(parts) for x in (matrix, values, vectors)))
    return values, vectors


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    finite = _finite(matrix)
    negligible = matrix.abs() < torch.finfo(matrix.dtype).eps ** 2.5  # on which LAPACK may not converge in float32
    values, vectors = torch.linalg.eigh(torch.where(finite & ~negligible, matrix, 0.0))
    return values, torch.where(finite, vectors, torch.nan)


def cholesky(matrix: Tensor) -> Tensor:
    """Returns the lower triangular L with A = L Lᵀ of symmetric matrices, (B, C, C); NaN where there is none.

    Example:
        >>> cholesky(torch.tensor([[[4.0]], [[-1.0]]])).flatten()
        tensor([2., nan])
    """
    finite = _finite(matrix)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factor, info = torch.linalg.cholesky_ex(torch.where(finite, matrix, eye))
    return torch.where(finite & (info == 0)[:, None, None], factor, torch.nan)


def _finite(matrix: Tensor) -> Tensor:
    """Whether all entries of a matrix are finite, (B, 1, 1)."""
    return matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)

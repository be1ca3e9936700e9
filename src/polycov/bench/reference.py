"""iSQRT-COV as in the literature: the reference for all times."""

import torch
from torch import Tensor


def plain_isqrt_cov(x: Tensor, iterations: int = 5) -> Tensor:
    """Returns iSQRT-COV of maps (B, C, H, W), implemented directly.

    It centres the features, computes the covariance with one product, runs the Newton–Schulz iteration as published,
    and takes the upper triangle. Autograd differentiates each step.
    """
    rows = x.flatten(2)  # (B, C, N)
    rows = rows - rows.mean(2, keepdim=True)
    matrix = rows @ rows.mT / rows.shape[2]
    trace = matrix.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]
    eye = torch.eye(matrix.shape[-1], dtype=x.dtype, device=x.device).expand_as(matrix)
    y, z = matrix / trace, eye
    for _ in range(iterations):
        t = 0.5 * (3.0 * eye - z @ y)
        y, z = y @ t, t @ z
    root = y * trace.sqrt()
    rows_index, columns_index = torch.triu_indices(*matrix.shape[1:], device=x.device)
    return root[:, rows_index, columns_index]

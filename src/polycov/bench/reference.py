"""iSQRT-COV as in the literature: the reference for all times."""

import torch
from torch import Tensor

from polycov.bench.peers import newton_schulz_root


def plain_isqrt_cov(x: Tensor, iterations: int = 5) -> Tensor:
    """Returns iSQRT-COV of maps (B, C, H, W), implemented directly.

    It centres the features, computes the covariance with one product, runs the Newton–Schulz iteration as published,
    and takes the upper triangle. Autograd differentiates each step.
    """
    rows = x.flatten(2)  # (B, C, N)
    rows = rows - rows.mean(2, keepdim=True)
    matrix = rows @ rows.mT / rows.shape[2]
    root = newton_schulz_root(matrix, iterations)
    rows_index, columns_index = torch.triu_indices(*matrix.shape[1:], device=x.device)
    return root[:, rows_index, columns_index]

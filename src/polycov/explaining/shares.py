"""The share of each region in a pooled feature: vectors that add up to the feature.

A second-order feature is linear in b I + Σ_n l_n x_nᵀ, with the rows l of X r(C), so the location n contributes the
vector of l_n x_nᵀ. The inner product of two features is then a sum over pairs of regions, one of each image:
⟨Σ_n f_n, Σ_m g_m⟩ = Σ_nm ⟨f_n, g_m⟩.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from polycov.explaining.evidence import Evidence, FirstOrderEvidence, SideBySideEvidence, collect_evidence
from polycov.explaining.pull_back import factors_of
from polycov.explaining.regions import RegionGrid
from polycov.explaining.second_order import SecondOrderEvidence
from polycov.pooling.pool import Pool
from polycov.pooling.post.base import Post

AT_ONCE = 32  # regions whose matrices are in memory


@torch.no_grad()
def region_shares(pool: Pool, local: Tensor, grid: RegionGrid) -> Tensor:
    """Returns the share of each region in the feature of one image, (regions, D); they add up to the feature.

    What belongs to no region, such as the bias of a projection, is spread evenly. Normalisations are followed with the
    factors of this image, as in `collect_evidence`.

    Args:
        pool: that pools the features.
        local: features of one image, a map (1, C, H, W) or tokens (1, N, C).
        grid: of the regions.

    Raises:
        PolycovError: if the pool has no exact decomposition.
    """
    shares, feature = _shares(pool, collect_evidence(pool, local), grid)
    return shares + (feature - shares.sum(0)) / len(shares)


def _shares(pool: Pool, evidence: Evidence, grid: RegionGrid) -> tuple[Tensor, Tensor]:
    """The shares, without what belongs to no region, and the feature, (1, D)."""
    shares, vector = _shares_of_vector(evidence, grid)
    for stage in cast(list[Post], list(pool.post)):
        output = stage(vector)
        if stage.affine or stage.degree is None:  # affine, or its tangent at this vector
            shares = _tangent(stage, vector, shares)
        else:
            shares = shares * factors_of(vector, output)
        vector = output
    return shares, vector


def _shares_of_vector(evidence: Evidence, grid: RegionGrid) -> tuple[Tensor, Tensor]:
    """The shares of the vector before later stages, and the vector."""
    if isinstance(evidence, SecondOrderEvidence):
        return _second_order(evidence, grid), evidence.vector
    if isinstance(evidence, FirstOrderEvidence):
        parts = evidence.pool.pooling.shares(evidence.tokens, evidence.token_weights)
        return grid.sum(parts[0], 0), parts.sum(1)
    if isinstance(evidence, SideBySideEvidence):
        pools = evidence.pool.parts
        both = [_shares(pool, part, grid) for pool, part in zip(pools, evidence.parts, strict=True)]
        dtype = evidence.vector.dtype
        return torch.cat([shares.to(dtype) for shares, _ in both], -1), evidence.vector
    raise TypeError(type(evidence).__name__)


def _tangent(stage: Callable[[Tensor], Tensor], vector: Tensor, directions: Tensor) -> Tensor:
    """The derivative of a stage at a vector, in several directions: that of its adjoint, which is linear."""
    with torch.enable_grad():
        point = vector.repeat(len(directions), 1).requires_grad_()
        output = stage(point)
        weights = torch.zeros_like(output).requires_grad_()
        (adjoint,) = torch.autograd.grad(output, point, weights, create_graph=True)
        (result,) = torch.autograd.grad(adjoint, weights, directions)
    return result


def _second_order(evidence: SecondOrderEvidence, grid: RegionGrid) -> Tensor:
    left, rows = evidence.left[0], evidence.rows[0]
    member = grid.index().to(rows.device) == torch.arange(grid.count, device=rows.device)[:, None]
    shares = []
    for some in member.to(rows.dtype).split(AT_ONCE):
        matrices = evidence.from_basis((some[:, :, None] * left).mT @ rows)
        shares.append(evidence.pool.vector(0.5 * (matrices + matrices.mT)))
    return torch.cat(shares)

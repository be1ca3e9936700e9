"""Stage 1: rewrite the local features so that ``rowsᵀ rows`` is the second-order statistic wanted.

Every moment is a function of tokens (B, N, C) that returns rows (B, N, C'). A mask marks the tokens that exist:
hidden tokens become rows of zeros, which add nothing to ``rowsᵀ rows``, so the result is exactly that of leaving
them out.
"""

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError
from polycov.registry import register


def as_tokens(x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Returns feature maps or tokens as tokens (B, N, C), and their mask as (B, N).

    Hidden tokens are replaced by zeros, so that whatever the padding holds (even NaN) cannot be seen.

    Args:
        x: maps of shape (B, C, H, W) or tokens of shape (B, N, C), floating point.
        mask: boolean, True where a token exists; shape (B, N), for maps (B, H, W) too.

    Raises:
        PolycovError: on a wrong shape or dtype, no location, or a mask that hides every token of a sample.

    Example:
        >>> as_tokens(torch.zeros(2, 256, 7, 7))[0].shape
        torch.Size([2, 49, 256])
    """
    if x.ndim not in (3, 4):
        raise PolycovError(f"Expected features of shape (B, C, H, W) or (B, N, C), got {tuple(x.shape)}.")
    if not x.is_floating_point():
        raise PolycovError(f"Expected floating-point features, got {x.dtype}. Convert them with x.float().")
    tokens = x.flatten(2).mT if x.ndim == 4 else x  # (B, N, C)
    if tokens.shape[1] == 0:
        raise PolycovError(f"Expected at least one location, got features of shape {tuple(x.shape)}.")
    if mask is None:
        return tokens, None
    if mask.ndim == 3 and x.ndim == 4:
        mask = mask.flatten(1)  # (B, H, W) → (B, N)
    if mask.dtype != torch.bool or mask.shape != tokens.shape[:2]:
        raise PolycovError(
            f"Expected a boolean mask of shape {tuple(tokens.shape[:2])}, True where a token exists, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}."
        )
    if not torch.compiler.is_compiling() and not bool(mask.any(1).all()):
        empty = (~mask.any(1)).nonzero().flatten().tolist()
        raise PolycovError(f"The mask hides every token of samples {empty[:10]}. Each sample needs at least one.")
    return torch.where(mask.unsqueeze(-1), tokens, 0.0), mask


def _count(tokens: Tensor, mask: Tensor | None) -> Tensor | int:
    """The number of tokens that exist: an integer, or (B, 1, 1) under a mask."""
    return tokens.shape[1] if mask is None else mask.sum(1).clamp(min=1).to(tokens.dtype)[:, None, None]


def _root(count: Tensor | int) -> Tensor | float:
    return count.sqrt() if isinstance(count, Tensor) else float(count) ** 0.5


def bilinear(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the tokens as they are: C = Σ x xᵀ.

    Args:
        tokens: (B, N, C).
        mask: optional, boolean (B, N).

    Reference: Lin, RoyChowdhury, Maji, "Bilinear CNN Models for Fine-grained Visual Recognition", ICCV 2015.

    Example:
        >>> rows = bilinear(torch.tensor([[[1.0, 2.0]]]))
        >>> rows.mT @ rows
        tensor([[[1., 2.],
                 [2., 4.]]])
    """
    return tokens


def covariance(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns (x − mean) / √N: C is the covariance (divided by N, not N − 1).

    Args:
        tokens: (B, N, C).
        mask: optional, boolean (B, N).

    Example:
        >>> rows = covariance(torch.tensor([[[1.0], [3.0]]]))
        >>> rows.mT @ rows
        tensor([[[1.0000]]])
    """
    count = _count(tokens, mask)
    centred = tokens - tokens.sum(1, keepdim=True) / count
    if mask is not None:
        centred = torch.where(mask.unsqueeze(-1), centred, 0.0)
    return centred / _root(count)


def gaussian(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns (x, 1) / √N: C = [[Σ + μμᵀ, μ], [μᵀ, 1]], the embedding of the Gaussian N(μ, Σ), with C + 1 channels.

    Args:
        tokens: (B, N, C).
        mask: optional, boolean (B, N).

    Reference: Wang, Li, Zhang, "G2DeNet: Global Gaussian Distribution Embedding Network", CVPR 2017.

    Example:
        >>> rows = gaussian(torch.tensor([[[1.0], [3.0]]]))
        >>> rows.mT @ rows
        tensor([[[5.0000, 2.0000],
                 [2.0000, 1.0000]]])
    """
    ones = tokens.new_ones(tokens.shape[:2]) if mask is None else mask.to(tokens.dtype)
    return torch.cat([tokens, ones.unsqueeze(-1)], -1) / _root(_count(tokens, mask))


def unit_trace(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Divides each sample's rows by their Frobenius norm, so that tr(rowsᵀ rows) = 1.

    It is the trace normalisation C / tr C, done before the product: neither 1e-20 nor 1e15 leaves the range of
    float32. Rows of zeros stay zeros, with a norm given as 1 and a gradient of 0.

    Args:
        rows: (B, N, C).

    Returns:
        The divided rows (B, N, C) and their norms √(tr C), (B,).

    Example:
        >>> rows, root = unit_trace(torch.tensor([[[3e-20], [4e-20]]]))
        >>> rows.flatten(), root
        (tensor([0.6000, 0.8000]), tensor([5.0000e-20]))
    """
    # The largest entry is a constant to autograd: rows / largest · largest does not depend on it.
    largest = rows.detach().abs().amax((1, 2), keepdim=True)
    largest = torch.where(largest == 0, 1.0, largest)
    rows = rows / largest
    norm = torch.linalg.vector_norm(rows, dim=(1, 2), keepdim=True)
    norm = torch.where(norm == 0, 1.0, norm)
    return rows / norm, (largest * norm).flatten()


class Moment(nn.Module):
    """Base of the moments: ``forward`` maps tokens (B, N, C) and a mask (B, N) to rows (B, N, ``out_channels``)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels


@register("moment", "bilinear")
class Bilinear(Moment):
    """Σ x xᵀ: see `polycov.functional.bilinear`."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return bilinear(tokens, mask)


@register("moment", "covariance")
class Covariance(Moment):
    """The covariance: see `polycov.functional.covariance`."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return covariance(tokens, mask)


@register("moment", "gaussian")
class Gaussian(Moment):
    """The Gaussian embedding, one channel more: see `polycov.functional.gaussian`."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels + 1)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return gaussian(tokens, mask)

"""Stage 1: rewrite the local features as rows so that ``rowsᵀ rows`` is the desired second-order statistic.

Every moment maps tokens (B, N, C) to rows (B, N, C'). Tokens that a mask hides become rows of zeros, which add nothing
to ``rowsᵀ rows``: the result is the same as without them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from polycov.pooling.registry import register
from polycov.pooling.tokens import count_tokens, hide
from polycov.pooling.transforms import SampleFunction, call


def _power_of_two(tokens: Tensor) -> Tensor:
    """A power of two, (B, 1, 1), that brings the largest entry close to 1; multiplying by it causes no rounding.

    It is a constant to autograd, because the scale it introduces is divided out again later.
    """
    tokens = tokens.detach()
    largest = torch.maximum(tokens.amax((1, 2)), -tokens.amin((1, 2)))
    exponent = torch.where(largest > 0, largest, 1.0).log2().floor() + 1
    return torch.exp2(-exponent.clamp(-120, 120))[:, None, None]


def scaled_bilinear(tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the rows of `bilinear` divided by a scale (B,) that keeps them close to 1, and the scale."""
    tokens = hide(tokens, mask)
    factor = _power_of_two(tokens)
    return tokens * factor, 1 / factor.flatten()


def scaled_covariance(tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the rows of `covariance` divided by a scale (B,) that keeps them close to 1, and the scale.

    The first token of each sample is subtracted before the mean is computed, which preserves digits when the mean is
    large compared with the spread. The result does not depend on that token, so it is a constant to autograd.
    """
    tokens = hide(tokens, mask)
    if mask is None:
        first = tokens[:, :1]
    else:
        first = tokens.gather(1, mask.int().argmax(1)[:, None, None].expand(-1, 1, tokens.shape[2]))
    shifted = hide(tokens - first.detach(), mask)
    factor, count = _power_of_two(shifted), count_tokens(tokens, mask)
    mean = shifted.sum(1, keepdim=True) / count[:, None, None]
    rows = shifted.sub_(mean).mul_(factor)  # in place, because this step is bound by memory
    return hide(rows, mask), 1 / (factor.flatten() * count.sqrt())


def scaled_gaussian(tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the rows of `gaussian` divided by a scale (B,) that keeps them close to 1, and the scale."""
    tokens = hide(tokens, mask)
    factor = _power_of_two(tokens).clamp(max=1.0)  # the last channel is 1
    ones = tokens.new_ones(tokens.shape[:2]) if mask is None else mask.to(tokens.dtype)
    rows = torch.cat([tokens * factor, ones.unsqueeze(-1) * factor], -1)
    return rows, 1 / (factor.flatten() * count_tokens(tokens, mask).sqrt())


def bilinear(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the tokens unchanged: C = Σ x xᵀ.

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
    return hide(tokens, mask)


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
    rows, scale = scaled_covariance(tokens, mask)
    return rows * scale[:, None, None]


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
    rows, scale = scaled_gaussian(tokens, mask)
    return rows * scale[:, None, None]


class _SecondMoment(SampleFunction):
    """XᵀX. Its gradient X (G + Gᵀ) takes one product; autograd through both factors would take two."""

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        return rows.mT @ rows

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        return rows @ (grad + grad.mT)

    @staticmethod
    def tangent(ctx: Any, direction: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        half = rows.mT @ direction
        return half + half.mT


def second_moment(rows: Tensor) -> Tensor:
    """Returns XᵀX of rows X, (B, N, C) → (B, C, C).

    Example:
        >>> second_moment(torch.tensor([[[1.0, 2.0]]]))
        tensor([[[1., 2.],
                 [2., 4.]]])
    """
    result: Tensor = call(_SecondMoment, rows)
    return result


class Moment(nn.Module):
    """Base class of the moments: maps tokens (B, N, C) and a mask (B, N) to rows (B, N, C') and a scale (B,).

    The moment is (scale · rows)ᵀ (scale · rows). Keeping the scale apart keeps the rows close to 1, so that features of
    size 1e-20 or 1e15 stay within the range of float32.

    Attributes:
        out_channels: C'.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels


@register("moment", "bilinear")
class Bilinear(Moment):
    """Σ x xᵀ: see `polycov.functional.bilinear`."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return scaled_bilinear(tokens, mask)


@register("moment", "covariance")
class Covariance(Moment):
    """The covariance: see `polycov.functional.covariance`."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return scaled_covariance(tokens, mask)


@register("moment", "gaussian")
class Gaussian(Moment):
    """The Gaussian embedding, with one more channel: see `polycov.functional.gaussian`."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels + 1)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return scaled_gaussian(tokens, mask)

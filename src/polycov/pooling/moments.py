"""Stage 1: rewrite the local features so that ``rowsᵀ rows`` is the second-order statistic wanted.

Every moment is a function of tokens (B, N, C) that returns rows (B, N, C'). A mask marks the tokens that exist:
hidden tokens become rows of zeros, which add nothing to ``rowsᵀ rows``, so the result is exactly that of leaving
them out.
"""

from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError
from polycov.pooling.registry import register

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def as_tokens(x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Returns feature maps or tokens as tokens (B, N, C), and their mask as (B, N).

    Args:
        x: maps of shape (B, C, H, W) or tokens of shape (B, N, C), floating point.
        mask: boolean, True where a token exists; shape (B, N), for maps (B, H, W) too.

    Raises:
        PolycovError: on a wrong shape or dtype, no location, or a mask that hides every token of a sample.

    Example:
        >>> as_tokens(torch.zeros(2, 256, 7, 7))[0].shape
        torch.Size([2, 49, 256])
    """
    if not isinstance(x, Tensor):
        raise PolycovError(f"Expected features as a torch.Tensor, got {type(x).__name__}. Use torch.as_tensor(x).")
    if x.ndim not in (3, 4):
        raise PolycovError(f"Expected features of shape (B, C, H, W) or (B, N, C), got {tuple(x.shape)}.")
    if x.dtype not in FLOATS:
        raise PolycovError(f"Expected floating-point features, got {x.dtype}. Convert them with x.float().")
    tokens = x.flatten(2).mT if x.ndim == 4 else x  # (B, N, C)
    if tokens.shape[1] == 0:
        raise PolycovError(f"Expected at least one location, got features of shape {tuple(x.shape)}.")
    if mask is None:
        return tokens, None
    shapes = [tuple(tokens.shape[:2])] + ([(x.shape[0], *x.shape[2:])] if x.ndim == 4 else [])
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or tuple(mask.shape) not in shapes:
        got = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        wanted = " or ".join(map(str, shapes))
        raise PolycovError(f"Expected a boolean mask of shape {wanted}, True where a token exists, got {got}.")
    mask = mask.flatten(1)
    if not torch.compiler.is_compiling() and not bool(mask.any(1).all()):
        empty = (~mask.any(1)).nonzero().flatten().tolist()
        raise PolycovError(f"The mask hides every token of samples {empty[:10]}. Each sample needs at least one.")
    return tokens, mask


def hide(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Returns tokens (B, N, C) with zeros where the mask (B, N) is False, whatever stood there, even NaN."""
    return tokens if mask is None else torch.where(mask.unsqueeze(-1), tokens, 0.0)


def count(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the number of tokens that exist, (B,)."""
    if mask is None:
        return tokens.new_full((tokens.shape[0],), float(tokens.shape[1]))
    return mask.sum(1).clamp(min=1).to(tokens.dtype)


def _power_of_two(tokens: Tensor) -> Tensor:
    """A power of two, (B, 1, 1), that brings the largest entry near 1: to multiply by it rounds nothing.

    A constant to autograd, since whatever is multiplied by it is divided by it in the end.
    """
    tokens = tokens.detach()
    largest = torch.maximum(tokens.amax((1, 2)), -tokens.amin((1, 2)))
    exponent = torch.where(largest > 0, largest, 1.0).log2().floor() + 1
    return torch.exp2(-exponent.clamp(-120, 120))[:, None, None]


def scaled_bilinear(tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the rows of `bilinear` divided by a scale (B,) that keeps them near 1, and the scale."""
    tokens = hide(tokens, mask)
    factor = _power_of_two(tokens)
    return tokens * factor, 1 / factor.flatten()


def scaled_covariance(tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the rows of `covariance` divided by a scale (B,) that keeps them near 1, and the scale.

    One token is subtracted before the mean is taken: where the mean is large beside the spread, digits would be lost
    otherwise. The result does not depend on which, so it is a constant to autograd.
    """
    tokens = hide(tokens, mask)
    first = 0 if mask is None else mask.int().argmax(1)[:, None, None].expand(-1, 1, tokens.shape[2])
    some = tokens[:, :1] if isinstance(first, int) else tokens.gather(1, first)
    shifted = hide(tokens - some.detach(), mask)
    factor, number = _power_of_two(shifted), count(tokens, mask)
    mean = shifted.sum(1, keepdim=True) / number[:, None, None]
    rows = shifted.sub_(mean).mul_(factor)  # in place: memory is what this costs
    return hide(rows, mask), 1 / (factor.flatten() * number.sqrt())


def scaled_gaussian(tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the rows of `gaussian` divided by a scale (B,) that keeps them near 1, and the scale."""
    tokens = hide(tokens, mask)
    factor = _power_of_two(tokens).clamp(max=1.0)  # the last channel is 1
    ones = tokens.new_ones(tokens.shape[:2]) if mask is None else mask.to(tokens.dtype)
    rows = torch.cat([tokens * factor, ones.unsqueeze(-1) * factor], -1)
    return rows, 1 / (factor.flatten() * count(tokens, mask).sqrt())


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


class _SecondMoment(torch.autograd.Function):
    """XᵀX. Its gradient is X (G + Gᵀ), one product where going back through both factors takes two."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return rows.mT @ rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        return rows @ (grad + grad.mT)


def second_moment(rows: Tensor) -> Tensor:
    """Returns XᵀX of rows X, (B, N, C) → (B, C, C).

    Example:
        >>> second_moment(torch.tensor([[[1.0, 2.0]]]))
        tensor([[[1., 2.],
                 [2., 4.]]])
    """
    result: Tensor = _SecondMoment.apply(rows)
    return result


class Moment(nn.Module):
    """Base of the moments: ``forward`` maps tokens (B, N, C) and a mask (B, N) to rows (B, N, ``out_channels``) and a
    scale (B,). The moment is (scale · rows)ᵀ (scale · rows), but its scale is carried apart from its rows, which stay
    near 1: neither 1e-20 nor 1e15 then leaves the range of float32.
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
    """The Gaussian embedding, one channel more: see `polycov.functional.gaussian`."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels + 1)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return scaled_gaussian(tokens, mask)

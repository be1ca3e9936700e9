"""Stage 1: rewrite the local features as rows so that ``rowsᵀ rows`` is the desired second-order statistic.

Every moment maps tokens (B, N, C) to rows (B, N, C'). Tokens that a mask hides become rows of zeros, which add nothing
to ``rowsᵀ rows``: the result is the same as without them. With floating-point weights w the statistic is
``rowsᵀ diag(w) rows``, linear in w.
"""

from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import finite_number
from polycov.pooling.functions.base import split_trace
from polycov.pooling.registry import register
from polycov.pooling.shrinkage import Shrinkage, check_shrinkage, effective_count, shrink, shrinkage_intensity
from polycov.pooling.symmetric import gram
from polycov.pooling.tokens import count_tokens, counts, hide, is_soft, power_of_two, weigh
from polycov.pooling.transforms import SampleFunction, call, is_plain

SCALES = 120  # exponent of the powers of two that rows are multiplied by, at most
CLOSE = 16.0  # how far from 1 the largest entry of centred rows may be
FEW = 4096  # rows


def _factor(tokens: Tensor, weights: Tensor | None = None) -> Tensor:
    """A power of two, (B, 1, 1), that brings the largest entry close to 1.

    It is a constant to autograd, because the scale it introduces is divided out again later.
    """
    tokens = tokens.detach()
    if is_soft(weights):
        tokens = hide(tokens, weights > 0)
    return power_of_two(torch.maximum(tokens.amax((1, 2), keepdim=True), -tokens.amin((1, 2), keepdim=True)), SCALES)


def _to_one(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Brings the largest entry of centred rows close to 1 by a power of two, in place; returns it too, (B, 1, 1).

    The rows of a channel add up to 0, so no entry is further below 0 than N times the largest: of few rows, the largest
    is enough. Where all samples are close to 1 already, nothing is done.
    """
    largest = rows.amax((1, 2), keepdim=True)
    if torch.compiler.is_compiling() or rows.shape[1] > FEW:
        largest = torch.maximum(largest, -rows.amin((1, 2), keepdim=True))
    if is_plain(largest) and bool(((largest > 1 / CLOSE) & (largest < CLOSE)).all()):
        return rows, torch.ones_like(largest)
    factor = power_of_two(largest, SCALES)
    return rows.mul_(factor), factor


def scaled_bilinear(tokens: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the rows of `bilinear` divided by a scale (B,) that keeps them close to 1, and the scale."""
    tokens = hide(tokens, weights)
    factor = _factor(tokens, weights)
    scale = 1 / factor.flatten()
    if is_soft(weights):
        scale = scale * (effective_count(tokens, weights) / count_tokens(tokens, weights)).sqrt()
    return tokens * factor, scale


def shift(tokens: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns tokens (B, N, C) minus the first that counts of each sample; those that a mask hides are zeros.

    This preserves digits where the mean is large compared with the spread. A covariance does not depend on that token,
    so it is a constant to autograd.

    Example:
        >>> shift(torch.tensor([[[1000.0], [1001.0]]])).flatten()
        tensor([0., 1.])
    """
    tokens = hide(tokens, weights)
    if weights is None:
        first = tokens[:, :1]
    else:
        first = tokens.gather(1, counts(weights).int().argmax(1)[:, None, None].expand(-1, 1, tokens.shape[2]))
    return hide(tokens - first.detach(), weights)


class _CentredRows(SampleFunction):
    """(x − mean) · factor of tokens, whose hidden ones are zeros, and the factor (B, 1, 1), a constant to autograd.

    The map is its own adjoint, so the gradient is centred and scaled in the same way: in place, because this is bound
    by memory. Autograd would take a pass over all tokens for each operation.
    """

    @staticmethod
    def forward(tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return _to_one(_centre(shift(tokens, mask), mask))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[1], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, None]:
        mask, factor = ctx.saved_tensors
        return _centre(hide(grad, mask) * factor, mask), None

    @staticmethod
    def tangent(ctx: Any, direction: Tensor, _: None) -> tuple[Tensor, None]:
        return _CentredRows.backward(ctx, direction, None)


def _centre(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Rows minus their mean, in place; hidden ones are zeros, and remain so."""
    if mask is None:
        return rows.sub_(rows.mean(1, keepdim=True))
    return hide(rows.sub_(rows.sum(1, keepdim=True) / count_tokens(rows, mask)[:, None, None]), mask)


def scaled_covariance(tokens: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the rows of `covariance` divided by a scale (B,) that keeps them close to 1, and the scale."""
    count = count_tokens(tokens, weights)
    if is_soft(weights):  # the rows have a derivative with respect to them
        shifted = shift(tokens, weights)
        factor = _factor(shifted, weights)
        mean = weigh(shifted, weights).sum(1, keepdim=True) / count[:, None, None]
        rows = hide((shifted - mean) * factor, weights)
    else:
        rows, factor = call(_CentredRows, tokens, weights)
    return rows, (factor.flatten() * count.sqrt()).reciprocal()


def scaled_gaussian(tokens: Tensor, weights: Tensor | None = None, constant: float = 1.0) -> tuple[Tensor, Tensor]:
    """Returns the rows of `gaussian` divided by a scale (B,) that keeps them close to 1, and the scale."""
    tokens = hide(tokens, weights)
    factor = _factor(tokens, weights).clamp(max=1 / constant)  # the last channel is the constant
    ones = tokens.new_ones(tokens.shape[:2]) if weights is None or is_soft(weights) else weights.to(tokens.dtype)
    rows = torch.cat([tokens * factor, ones.unsqueeze(-1) * (constant * factor)], -1)
    return rows, 1 / (factor.flatten() * count_tokens(tokens, weights).sqrt())


def with_roots(rows: Tensor, weights: Tensor | None) -> Tensor:
    """Returns rows times √w, so that ``rowsᵀ rows`` is the weighted statistic.

    The derivative of √w at 0 is infinite. Where derivatives are needed, use `second_moment`, which is linear in w.
    """
    return weigh(rows, weights.to(rows.dtype).sqrt()) if is_soft(weights) else rows


def bilinear(tokens: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the tokens unchanged: C = Σ x xᵀ.

    With weights, C = n Σ w x xᵀ / Σ w, where n = (Σ w)² / Σ w² is the effective number of tokens: scaling the weights
    changes nothing, and weights 0 and 1 are a mask.

    Args:
        tokens: (B, N, C).
        weights: optional, (B, N), boolean or floating point.

    Reference: Lin, RoyChowdhury, Maji, "Bilinear CNN Models for Fine-grained Visual Recognition", ICCV 2015.

    Example:
        >>> rows = bilinear(torch.tensor([[[1.0, 2.0]]]))
        >>> rows.mT @ rows
        tensor([[[1., 2.],
                 [2., 4.]]])
    """
    if not is_soft(weights):
        return hide(tokens, weights)
    rows, scale = scaled_bilinear(tokens, weights)
    return with_roots(rows * scale[:, None, None], weights)


def covariance(tokens: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns (x − mean) / √N: C is the covariance (divided by N, not N − 1).

    With weights, mean = Σ w x / Σ w and C = Σ w (x − mean)(x − mean)ᵀ / Σ w.

    Args:
        tokens: (B, N, C).
        weights: optional, (B, N), boolean or floating point.

    Example:
        >>> rows = covariance(torch.tensor([[[1.0], [3.0]]]))
        >>> rows.mT @ rows
        tensor([[[1.0000]]])
        >>> rows = covariance(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[1.0, 3.0]]))
        >>> rows.mT @ rows
        tensor([[[0.7500]]])
    """
    rows, scale = scaled_covariance(tokens, weights)
    return with_roots(rows * scale[:, None, None], weights)


def gaussian(tokens: Tensor, weights: Tensor | None = None, constant: float = 1.0) -> Tensor:
    """Returns (x, 1) / √N: C = [[Σ + μμᵀ, μ], [μᵀ, 1]], the embedding of the Gaussian N(μ, Σ), with C + 1 channels.

    With weights, μ and Σ are the weighted mean and covariance. With a constant β, (x, β) takes the place of (x, 1): the
    larger, the more of the root is the mean, and the closer the rest comes to the root of Σ alone.

    Args:
        tokens: (B, N, C).
        weights: optional, (B, N), boolean or floating point.
        constant: β.

    Reference: Wang, Li, Zhang, "G2DeNet: Global Gaussian Distribution Embedding Network", CVPR 2017.

    Example:
        >>> rows = gaussian(torch.tensor([[[1.0], [3.0]]]))
        >>> rows.mT @ rows
        tensor([[[5.0000, 2.0000],
                 [2.0000, 1.0000]]])
    """
    rows, scale = scaled_gaussian(tokens, weights, constant)
    return with_roots(rows * scale[:, None, None], weights)


class _SecondMoment(SampleFunction):
    """XᵀX. Its gradient X (G + Gᵀ) takes one product; autograd through both factors would take two."""

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        return gram(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        both = grad + grad.mT
        return rows @ both if rows.is_contiguous() else (both @ rows.mT).mT  # in the layout of the rows: no copy later

    @staticmethod
    def tangent(ctx: Any, direction: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        half = rows.mT @ direction
        return half + half.mT


def second_moment(rows: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns XᵀX of rows X, (B, N, C) → (B, C, C), or Xᵀ diag(w) X with floating-point weights w, (B, N).

    Example:
        >>> second_moment(torch.tensor([[[1.0, 2.0]]]))
        tensor([[[1., 2.],
                 [2., 4.]]])
    """
    if is_soft(weights):
        half = 0.5 * (rows.mT @ weigh(rows, weights))
        return half + half.mT
    result: Tensor = call(_SecondMoment, rows)
    return result


def shrunk_covariance(tokens: Tensor, shrinkage: float | str, weights: Tensor | None = None) -> Tensor:
    """Returns the shrunk covariance (1 − ρ) C + ρ (tr C / p) I of tokens (B, N, C), as a matrix (B, C, C).

    Args:
        tokens: (B, N, C).
        shrinkage: "oas", "ledoit_wolf", or ρ from 0 to 1.
        weights: optional, (B, N), boolean or floating point.

    Example:
        >>> shrunk_covariance(torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]), 0.5)
        tensor([[[0.7500, 0.0000],
                 [0.0000, 0.2500]]])
    """
    checked = check_shrinkage(shrinkage)
    rows, scale = scaled_covariance(tokens, weights)
    unit, trace, _ = split_trace(second_moment(rows, weights))
    if checked is not None:
        unit = shrink(unit, shrinkage_intensity(checked, unit, rows, weights))
    return unit * (trace * scale.square())[:, None, None]


class Moment(nn.Module):
    """Base class of the moments: maps tokens (B, N, C) and weights (B, N) to rows (B, N, C') and a scale (B,).

    The moment is scale² rowsᵀ rows; a mask has turned rows to zeros. With floating-point weights w the rows are not
    weighted, and the moment is scale² rowsᵀ diag(w) rows. Keeping the scale apart keeps the rows close to 1, so that
    features of size 1e-20 or 1e15 stay within the range of float32.

    Attributes:
        out_channels: C'.
        routes: the routes that exist for the moment.
    """

    routes: tuple[str, ...] = ("covariance", "gram", "paper")

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels

    def intensity(self, unit: Tensor, rows: Tensor, weights: Tensor | None) -> Tensor | None:
        """Returns how far the pool shrinks the moment towards a multiple of the identity, (B,); None for not at all."""
        return None


@register("moment", "bilinear")
class Bilinear(Moment):
    """Σ x xᵀ: see `polycov.functional.bilinear`."""

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return scaled_bilinear(tokens, weights)


@register("moment", "covariance", "covariance", *(f"covariance(shrinkage={s})" for s in ("oas", "ledoit_wolf", 0.1)))
class Covariance(Moment):
    """The covariance, as it is or shrunk towards a multiple of the identity: see `polycov.functional.covariance`.

    Args:
        channels: C.
        shrinkage: "oas" or "ledoit_wolf", which estimate the intensity for each sample, or the intensity from 0 to 1;
            see `polycov.functional.shrunk_covariance`.
    """

    def __init__(self, channels: int, *, shrinkage: Shrinkage = None) -> None:
        super().__init__(channels)
        self.shrinkage = check_shrinkage(shrinkage)
        if self.shrinkage is not None:
            self.routes = ("covariance",)

    def intensity(self, unit: Tensor, rows: Tensor, weights: Tensor | None) -> Tensor | None:
        return None if self.shrinkage is None else shrinkage_intensity(self.shrinkage, unit, rows, weights)

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return scaled_covariance(tokens, weights)


@register("moment", "gaussian", "gaussian", "gaussian(constant=3)")
class Gaussian(Moment):
    """The Gaussian embedding, with one more channel: see `polycov.functional.gaussian`.

    Args:
        channels: C.
        constant: value of the channel that is added.
    """

    def __init__(self, channels: int, *, constant: float = 1.0) -> None:
        super().__init__(channels + 1)
        self.constant = finite_number("gaussian", "constant", constant, 1e-6, 1e6)

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return scaled_gaussian(tokens, weights, self.constant)

"""Cross moments: second-order statistics of two feature sets at the same locations, C₁ × C₂ matrices.

A cross moment is LᵀR, with rows L of one feature set and R of the other. The two sets are the inputs of a pool, or two
learned reductions of one input.
"""

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError, known, positive_int
from polycov.pooling.moments import scaled_bilinear, scaled_covariance, scaled_gaussian, shift
from polycov.pooling.registry import register
from polycov.pooling.tokens import power_of_two, weigh

STATISTICS = {"bilinear": scaled_bilinear, "covariance": scaled_covariance, "gaussian": scaled_gaussian}


def cross_moment(
    left: Tensor, right: Tensor, weights: Tensor | None = None, statistic: str = "bilinear"
) -> tuple[Tensor, Tensor]:
    """Returns the cross moment divided by a scale that keeps it close to 1, (B, C₁, C₂), and the scale, (B,).

    It is Σ l rᵀ (``bilinear``), the cross-covariance Σ (l − mean)(r − mean)ᵀ / N (``covariance``), or the mean of
    (l, 1)(r, 1)ᵀ (``gaussian``). Each is a block of the moment of that name of (l, r), also with weights.

    Args:
        left: tokens (B, N, C₁).
        right: tokens (B, N, C₂).
        weights: optional, (B, N), boolean or floating point.
        statistic: "bilinear", "covariance" or "gaussian".

    Example:
        >>> moment, scale = cross_moment(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[3.0, 0.0], [4.0, 1.0]]]))
        >>> (moment * scale).float()
        tensor([[[11.,  2.]]])
    """
    (left, left_scale), (right, right_scale) = (STATISTICS[statistic](x, weights) for x in (left, right))
    moment = left.mT @ weigh(right, weights)
    factor = power_of_two(moment.detach().abs().amax((1, 2)))
    scale = left_scale.double() * right_scale.double()  # their product may leave the range of float32, not its root
    return moment * factor[:, None, None], scale / factor


def split_norm(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Returns U = M / ‖M‖ and ‖M‖, (B,), of M, (B, C₁, C₂), with the Frobenius norm; UᵀU has trace 1.

    A zero matrix stays zero, with a gradient of 0 through its norm, which is the smallest normal number.

    Example:
        >>> split_norm(torch.tensor([[[3.0, 4.0]]]))
        (tensor([[[0.6000, 0.8000]]]), tensor([5.]))
    """
    square = matrix.square().sum((1, 2))
    zero = square == 0
    norm = torch.where(zero, 1.0, square).sqrt()
    return matrix / norm[:, None, None], torch.where(zero, torch.finfo(norm.dtype).tiny, norm)


class CrossMoment(nn.Module):
    """Base class of cross moments: maps tokens (B, N, C) and weights (B, N) to matrices (B·heads, C₁, C₂) and scales.

    Attributes:
        sides: C₁ and C₂.
        heads: the number of matrices per sample.
        inputs: the number of inputs of the pool; the tokens of two inputs are side by side.
    """

    inputs = 1

    def __init__(self, sides: tuple[int, int], heads: int, statistic: str) -> None:
        super().__init__()
        if statistic not in STATISTICS:
            raise PolycovError(f"Unknown cross moment {statistic!r}. {known(str(statistic), STATISTICS)}")
        extra = int(statistic == "gaussian")
        self.sides = (sides[0] + extra, sides[1] + extra)
        self.heads = heads
        self.statistic = statistic

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the moments, (B·heads, C₁, C₂), and their scales, (B·heads,)."""
        raise NotImplementedError


@register("cross", "cross", "cross", "cross(covariance)", "cross(gaussian)")
class Cross(CrossMoment):
    """The cross moment of two inputs: see `polycov.functional.cross_moment`.

    Args:
        channels: C₁ and C₂, of the inputs.
        statistic: "bilinear", "covariance" or "gaussian".
    """

    inputs = 2

    def __init__(self, channels: tuple[int, int], statistic: str = "bilinear") -> None:
        super().__init__(channels, 1, statistic)
        self.channels = channels

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        left, right = tokens.split(self.channels, -1)
        return cross_moment(left, right, weights, self.statistic)


@register("cross", "self_cross", "self_cross(3, heads=2)", "self_cross(2, statistic=bilinear)")
class SelfCross(CrossMoment):
    """The cross-covariance of two learned reductions of the same features, for each of several heads.

    Head h has the matrix (X L_h)ᵀ (X R_h) / N of the centred features X, with learned L_h and R_h, (C, dim): 1×1
    convolutions without bias. All heads together have heads · dim² entries.

    References: Xie, Zeng, Wang, Zhou, Li, "SoT: Delving Deeper into Classification Head for Transformer", 2021
    (multiheaded global cross-covariance pooling); Gao, Wang, Lin, Zhu, Hu, Zhou, "Tuning Pre-trained Model via Moment
    Probing", ICCV 2023, where neighbouring heads of a single reduction take the parts of L_h and R_h.

    Args:
        channels: C.
        dim: channels of each reduction.
        heads: the number of pairs of reductions.
        statistic: "covariance", "bilinear" or "gaussian".
        seed: determines the initial weights, normal with variance 1/C.
    """

    needs_training = True

    def __init__(
        self, channels: int, dim: int, *, heads: int = 1, statistic: str = "covariance", seed: int = 0
    ) -> None:
        dim, heads = positive_int("self_cross", "dim", dim, 2**16), positive_int("self_cross", "heads", heads, 2**16)
        super().__init__((dim, dim), heads, statistic)
        self.dim = dim
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(2 * heads * dim, channels, generator=generator, device="cpu") / channels**0.5
        self.weight = nn.Parameter(weight.to(torch.get_default_device()))

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        tokens = shift(tokens, weights) if self.statistic == "covariance" else tokens
        reduced = tokens @ self.weight.to(tokens.dtype).mT
        pairs = reduced.unflatten(-1, (self.heads, 2 * self.dim)).transpose(1, 2).flatten(0, 1)  # (B·heads, N, 2·dim)
        weights = None if weights is None else weights.repeat_interleave(self.heads, 0)
        left, right = pairs.chunk(2, -1)
        return cross_moment(left, right, weights, self.statistic)

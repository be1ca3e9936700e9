"""DropCov: the covariance of features some of whose channels are dropped, in training."""

import math

import torch
from torch import Tensor, nn

from polycov.pooling.first_order import average
from polycov.pooling.moments import Covariance, with_roots
from polycov.pooling.registry import register

PULL = 10.0  # of importance against dropping, in the rate


def drop_rate(rows: Tensor, importance: Tensor) -> Tensor:
    """Returns the share of channels to drop, 1 − 10/log₂C · cos(ω, Σ 1), averaged over the samples and cut to [0, 1].

    Where the important channels are those that covary most with the others, few are dropped, to preserve information;
    otherwise many, to decorrelate the representation.

    Args:
        rows: X with XᵀX = Σ, (B, N, C).
        importance: ω of the channels, (B, C).

    Example:
        >>> drop_rate(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[0.0, 1.0]])).item()
        1.0
    """
    correlation = (rows.sum(-1).unsqueeze(1) @ rows).squeeze(1)  # the row sums of XᵀX
    cosine = nn.functional.cosine_similarity(importance, correlation, dim=1)
    return (1 - PULL / math.log2(max(rows.shape[-1], 2)) * cosine.mean()).clamp(0, 1)


@register("moment", "dropcov")
class DropCov(Covariance):
    """The covariance; in training, of features of which channels are dropped at an adaptive rate ρ.

    Channels are dropped per sample, and the others multiplied by (1 + ω)/(1 − ρ). Their importance ω is the softmax of
    the channel means after a learnable filter over three neighbouring channels, which starts as the identity. ρ is that
    of `drop_rate`. Like torch's dropout it draws from torch's global generator, and does nothing in evaluation. If
    ρ = 1, nothing is dropped, because nothing would remain.

    Reference: Wang, Gao, Zhang, Xie, Li, Hu, "DropCov: A Simple yet Effective Method for Improving Deep Architectures",
    NeurIPS 2022.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.filter = nn.Parameter(torch.tensor([0.0, 1.0, 0.0]))

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows, scale = super().forward(tokens, weights)
        if not self.training:
            return rows, scale
        importance = self.importance(tokens, weights)
        rate = drop_rate(with_roots(rows, weights), importance).detach()
        keep = (torch.rand_like(importance) >= rate) | (rate == 1)
        factor = (1 + importance) * keep / torch.where(rate < 1, 1 - rate, 1.0)
        return rows * factor.unsqueeze(1), scale

    def importance(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        """Returns ω, (B, C): positive, with sum 1."""
        means = average(tokens, weights)
        padded = nn.functional.pad(means, (1, 1))
        taps = self.filter.to(means.dtype)
        size = means.shape[-1]
        return sum(taps[i] * padded[:, i : i + size] for i in range(3)).softmax(-1)  # type: ignore[union-attr]

"""First-order pooling: the baselines of second-order pooling."""

import torch
from torch import Tensor, nn

from polycov.errors import finite_number
from polycov.pooling.registry import register
from polycov.pooling.tokens import count_tokens, hide


def average(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the mean over the tokens, (B, N, C) → (B, C).

    Example:
        >>> average(torch.tensor([[[1.0], [3.0]]]))
        tensor([[2.]])
    """
    return hide(tokens, mask).sum(1) / count_tokens(tokens, mask).unsqueeze(-1)


def maximum(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the maximum over the tokens, (B, N, C) → (B, C).

    Example:
        >>> maximum(torch.tensor([[[1.0], [3.0]]]))
        tensor([[3.]])
    """
    return (tokens if mask is None else torch.where(mask.bool().unsqueeze(-1), tokens, -torch.inf)).amax(1)


def gem(tokens: Tensor, p: Tensor | float = 3.0, mask: Tensor | None = None, floor: float = 1e-6) -> Tensor:
    """Returns the generalised mean (mean of max(x, floor)^p)^(1/p) over the tokens, (B, N, C) → (B, C).

    It is computed with logarithms, so that no power overflows.

    Reference: Radenović, Tolias, Chum, "Fine-tuning CNN Image Retrieval with No Human Annotation", TPAMI 2019.

    Example:
        >>> gem(torch.tensor([[[1.0], [3.0]]]), 1.0)
        tensor([[2.]])
    """
    logs = hide(tokens, mask).clamp(min=floor).log() * p
    if mask is not None:
        logs = torch.where(mask.bool().unsqueeze(-1), logs, -torch.inf)
    return ((logs.logsumexp(1) - count_tokens(tokens, mask).log().unsqueeze(-1)) / p).exp()


class FirstOrder(nn.Module):
    """Base class of first-order pooling: maps tokens (B, N, C) and a mask (B, N) to (B, ``out_features``).

    Attributes:
        needs_training: whether its parameters mean nothing before they are trained.
    """

    needs_training: bool = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_features = channels

    def shares(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the share of each location in the result, (B, N, C); the shares add up to `forward`."""
        raise NotImplementedError

    def contributions(self, tokens: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the share of each location in a weighted sum of the result, (B, N), for weights (B, C)."""
        return (weights.unsqueeze(1) @ self.shares(tokens, mask).mT).squeeze(1)


@register("first_order", "average")
class Average(FirstOrder):
    """The mean over locations."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return average(tokens, mask)

    def shares(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Each location divided by their number."""
        return hide(tokens, mask) / count_tokens(tokens, mask)[:, None, None]

    def contributions(self, tokens: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """The same without the shares: one pass over the tokens."""
        scaled = weights / count_tokens(tokens, mask).unsqueeze(-1)
        return (scaled.unsqueeze(1) @ hide(tokens, mask).mT).squeeze(1)  # maps are stored as (B, C, N)


@register("first_order", "max")
class Max(FirstOrder):
    """The maximum over locations."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return maximum(tokens, mask)

    def shares(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """The maximum belongs to the first location that has it."""
        visible = tokens if mask is None else torch.where(mask.unsqueeze(-1), tokens, -torch.inf)
        index = visible.argmax(1, keepdim=True)
        return torch.zeros_like(tokens).scatter(1, index, tokens.gather(1, index))


@register("first_order", "gem")
class GeM(FirstOrder):
    """The generalised mean, with a learnable exponent: see `polycov.functional.gem`.

    Args:
        channels: the number of channels.
        p: the initial exponent.
    """

    def __init__(self, channels: int, p: float = 3.0) -> None:
        super().__init__(channels)
        self.p = nn.Parameter(torch.tensor(float(finite_number("gem", "p", p, 0, 1e6))))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return gem(tokens, self.p.to(tokens.dtype), mask)

    def shares(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """The result divided in proportion to the powers x^p of the locations."""
        p = self.p.to(tokens.dtype)
        logs = hide(tokens, mask).clamp(min=1e-6).log() * p
        if mask is not None:
            logs = torch.where(mask.unsqueeze(-1), logs, -torch.inf)
        return logs.softmax(1) * gem(tokens, p, mask).unsqueeze(1)

"""First-order pooling: the baselines of second-order pooling."""

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError, finite_number
from polycov.pooling.registry import register
from polycov.pooling.tokens import count_tokens, counts, hide, is_soft, weigh
from polycov.pooling.transforms import is_readable


def average(tokens: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the mean over the tokens, (B, N, C) → (B, C); with weights Σ w x / Σ w.

    Example:
        >>> average(torch.tensor([[[1.0], [3.0]]]))
        tensor([[2.]])
    """
    return weigh(hide(tokens, weights), weights).sum(1) / count_tokens(tokens, weights).unsqueeze(-1)


def maximum(tokens: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the maximum over the tokens, (B, N, C) → (B, C); with weights, over those of positive weight.

    Example:
        >>> maximum(torch.tensor([[[1.0], [3.0]]]))
        tensor([[3.]])
    """
    return _visible(tokens, weights).amax(1)


def _visible(values: Tensor, weights: Tensor | None) -> Tensor:
    """The values (B, N, C), with −∞ where a token does not count."""
    return values if weights is None else torch.where(counts(weights).unsqueeze(-1), values, -torch.inf)


def gem(tokens: Tensor, p: Tensor | float = 3.0, weights: Tensor | None = None, floor: float = 1e-6) -> Tensor:
    """Returns the generalised mean (mean of max(x, floor)^p)^(1/p) over the tokens, (B, N, C) → (B, C).

    With weights the mean is Σ w x^p / Σ w. It is computed with logarithms, so that no power overflows.

    Reference: Radenović, Tolias, Chum, "Fine-tuning CNN Image Retrieval with No Human Annotation", TPAMI 2019.

    Example:
        >>> gem(torch.tensor([[[1.0], [3.0]]]), 1.0)
        tensor([[2.]])
    """
    logs = hide(tokens, weights).clamp(min=floor).log() * p
    count = count_tokens(tokens, weights).log().unsqueeze(-1)
    return ((log_sum(logs, weights) - count) / p).exp()


def log_sum(logs: Tensor, weights: Tensor | None) -> Tensor:
    """The logarithm of Σ w exp(logs), (B, N, C) → (B, C), differentiable at w = 0 too."""
    if not is_soft(weights):
        return _visible(logs, weights).logsumexp(1)
    terms, largest = _terms(logs, weights)
    return terms.sum(1).log() + largest.squeeze(1)


def softmax(logits: Tensor, weights: Tensor | None) -> Tensor:
    """Returns w exp(logits) / Σ w exp(logits), (B, N, M), over the locations that count."""
    if not is_soft(weights):
        return _visible(logits, weights).softmax(1)
    terms, _ = _terms(logits, weights)
    return terms / terms.sum(1, keepdim=True)


def _terms(logs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The w exp(logs − largest) of floating-point weights, and the largest of the tokens that count."""
    largest = _visible(logs.detach(), weights).amax(1, keepdim=True)
    powers = (logs - largest).clamp(max=80.0).exp()  # only tokens of weight 0 can exceed the largest
    return weigh(powers, weights), largest


class FirstOrder(nn.Module):
    """Base class of first-order pooling: maps tokens (B, N, C) and weights (B, N) to (B, ``out_features``).

    Attributes:
        needs_training: whether its parameters mean nothing before they are trained.
        reads_prefix: whether it pools the prefix tokens of a transformer, and not the others.
    """

    needs_training: bool = False
    reads_prefix: bool = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_features = channels

    def shares(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        """Returns the share of each location in the result, (B, N, C); the shares add up to `forward`."""
        raise NotImplementedError

    def contributions(self, tokens: Tensor, coefficients: Tensor, weights: Tensor | None = None) -> Tensor:
        """Returns the share of each location in a sum of the result with coefficients (B, C), (B, N)."""
        return (coefficients.unsqueeze(1) @ self.shares(tokens, weights).mT).squeeze(1)


@register("first_order", "average")
class Average(FirstOrder):
    """The mean over locations."""

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        return average(tokens, weights)

    def shares(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        """Each location divided by their number, or times its share of the weights."""
        return weigh(hide(tokens, weights), weights) / count_tokens(tokens, weights)[:, None, None]

    def contributions(self, tokens: Tensor, coefficients: Tensor, weights: Tensor | None = None) -> Tensor:
        """The same, but without computing the shares: one pass over the tokens."""
        scaled = coefficients / count_tokens(tokens, weights).unsqueeze(-1)
        channels_first = weigh(hide(tokens, weights), weights).mT  # as maps are stored
        return (scaled.unsqueeze(1) @ channels_first).squeeze(1)


@register("first_order", "class_token")
class ClassToken(FirstOrder):
    """The class token of a transformer: the first of its prefix tokens.

    The pool has to know how many prefix tokens there are (``prefix_tokens`` of `polycov.create_pool`; a model asks its
    backbone). All other poolings leave them out.
    """

    reads_prefix = True

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        if weights is not None and is_readable(weights) and not bool((weights[:, 0] != 0).all()):
            raise PolycovError("The mask hides the class token of a sample, which this pool reads.")
        return tokens[:, 0]


@register("first_order", "max")
class Max(FirstOrder):
    """The maximum over locations."""

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        return maximum(tokens, weights)

    def shares(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        """The maximum belongs to the first location that has it."""
        index = _visible(tokens, weights).argmax(1, keepdim=True)
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

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        return gem(tokens, self.p.to(tokens.dtype), weights)

    def shares(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        """The result divided in proportion to the powers x^p of the locations."""
        p = self.p.to(tokens.dtype)
        logs = hide(tokens, weights).clamp(min=1e-6).log() * p
        return softmax(logs, weights) * gem(tokens, p, weights).unsqueeze(1)

"""Attention pooling: sums of local features with weights that depend on them, the probes of frozen transformers.

All have the form y_c = Σ_n a_gn v_nc: channels are divided into groups g of nearly equal size, each with weights a_g
over the locations that are positive and add up to 1. So the share of a location in the result is a_gn v_nc, exact for
these weights; that the weights themselves depend on the features is not attributed.
"""

import math

import torch
from torch import Tensor, nn

from polycov.errors import finite_number, positive_int
from polycov.pooling.first_order import FirstOrder, log_sum, softmax
from polycov.pooling.registry import register
from polycov.pooling.tokens import count_tokens, counts, hide, is_soft, weigh

SMALL = 0.02  # standard deviation of a query at the start


def attention_weights(logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the softmax of logits (B, N, M) over the locations that exist; with weights, w exp(z) / Σ w exp(z).

    Example:
        >>> attention_weights(torch.zeros(1, 2, 1), torch.tensor([[True, False]])).flatten()
        tensor([1., 0.])
    """
    return softmax(logits, weights)


def layer_norm(tokens: Tensor) -> Tensor:
    """Returns tokens (B, N, C) without the mean of their channels, divided by the standard deviation.

    torch's own has a wrong derivative of its derivative in forward mode, and squares that leave the range of float32.

    Example:
        >>> layer_norm(torch.tensor([[[1.0, 3.0]]]))
        tensor([[[-1.0000,  1.0000]]])
    """
    centred = tokens - tokens.mean(-1, keepdim=True)
    centred = centred - centred.mean(-1, keepdim=True)  # the first mean is rounded: equal channels would not become 0
    size = centred.detach().abs().amax(-1, keepdim=True).clamp(min=1.0)
    unit = centred / size
    return unit * (unit.square().mean(-1, keepdim=True) + 1e-5 / size.square().clamp(max=1e30)).rsqrt()


def simpool(tokens: Tensor, gamma: float = 2.0, weights: Tensor | None = None) -> Tensor:
    """Returns (Σ_n a_n (x_n − min x + ε)^γ)^(1/γ), with a = softmax(LN(mean x) · LN(x_n) / √C), (B, N, C) → (B, C).

    LN subtracts the mean of the channels and divides by their standard deviation; ε = 1e-6; the minimum is over all
    channels and locations of a sample. Weights enter the mean and the softmax; the minimum is over the locations of
    positive weight.

    Reference: Psomas, Kakogeorgiou, Karantzalos, Avrithis, "Keep It SimPool: Who Said Supervised Transformers Suffer
    from Attention Deficit?", ICCV 2023, without its linear layers.

    Example:
        >>> simpool(torch.tensor([[[1.0, 2.0], [1.0, 2.0]]]))
        tensor([[1.0000e-06, 1.0000e+00]])
    """
    return (log_sum(_simpool_logs(tokens, gamma, weights), weights) / gamma).exp()


def _simpool_logs(tokens: Tensor, gamma: float, weights: Tensor | None) -> Tensor:
    """The logarithms of the terms of the sum, (B, N, C), so that no power overflows; without floating-point weights."""
    tokens = hide(tokens, weights)
    mean = weigh(tokens, weights).sum(1, keepdim=True) / count_tokens(tokens, weights)[:, None, None]
    logits = (layer_norm(tokens) * layer_norm(mean)).sum(-1, keepdim=True) / math.sqrt(tokens.shape[-1])
    visible = tokens if weights is None else torch.where(counts(weights).unsqueeze(-1), tokens, torch.inf)
    raised = (tokens - visible.amin((1, 2), keepdim=True)).clamp(min=0) + 1e-6
    if is_soft(weights):
        return gamma * raised.log() + logits - log_sum(logits, weights).unsqueeze(1)
    if weights is not None:
        logits = torch.where(weights.bool().unsqueeze(-1), logits, -torch.inf)
    return gamma * raised.log() + logits.log_softmax(1)


def _queries(count: int, channels: int, generator: torch.Generator) -> nn.Parameter:
    draw = SMALL * torch.randn(count, channels, generator=generator, device="cpu")
    return nn.Parameter(draw.to(torch.get_default_device()))


def _linear(channels: int, generator: torch.Generator) -> nn.Parameter:
    """Weights (C, C), drawn as torch's linear layers draw theirs."""
    draw = 2 * torch.rand(channels, channels, generator=generator, device="cpu") - 1
    return nn.Parameter((draw / math.sqrt(channels)).to(torch.get_default_device()))


class AttentionPool(FirstOrder):
    """Base class of pools that attend with learned queries, one for each group of channels.

    Args:
        channels: C.
        groups: their number; at most C are used, one for each channel.
    """

    needs_training = True

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__(channels)
        self.groups = min(groups, channels)

    def group_of(self, channels: int, device: torch.device) -> Tensor:
        """Returns the group of each channel, (C,)."""
        return torch.arange(channels, device=device) * self.groups // channels

    def logits(self, tokens: Tensor) -> Tensor:
        """Returns the logits of the weights, (B, N, groups)."""
        raise NotImplementedError

    def values(self, tokens: Tensor) -> Tensor:
        """Returns v, (B, N, C)."""
        raise NotImplementedError

    def shares(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        """The value of each location times its weight."""
        tokens = hide(tokens, weights)
        attention = attention_weights(self.logits(tokens), weights)
        return attention[..., self.group_of(self.out_features, tokens.device)] * self.values(tokens)

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.shares(tokens, weights).sum(1)


@register("first_order", "attentive_probe", "attentive_probe(2)")
class AttentiveProbe(AttentionPool):
    """Cross-attention with one learned query and several heads, on normalised features.

    With x̂ = LN(x), keys W_k x̂ and values W_v x̂ + b, head h has the weights softmax_n(q_h · k_nh / √(C/heads)). This is
    the cross-attention layer of the attentive probes of CAE and V-JEPA. What a linear classifier on top makes redundant
    is left out: the projections of query and output, the residual and the bias of the keys; V-JEPA's multilayer
    perceptron after it too.

    Args:
        channels: C.
        heads: their number; at most C.
        seed: determines the initial weights.

    Reference: Bardes et al., "Revisiting Feature Prediction for Learning Visual Representations from Video" (V-JEPA),
    TMLR 2024; Chen et al., "Context Autoencoder for Self-Supervised Representation Learning", IJCV 2024.
    """

    def __init__(self, channels: int, heads: int = 8, *, seed: int = 0) -> None:
        super().__init__(channels, positive_int("attentive_probe", "heads", heads))
        generator = torch.Generator().manual_seed(seed)
        self.scale, self.shift = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.query = _queries(1, channels, generator)
        self.key, self.value = _linear(channels, generator), _linear(channels, generator)
        self.bias = nn.Parameter(torch.zeros(channels))

    def _normalise(self, tokens: Tensor) -> Tensor:
        return layer_norm(tokens) * self.scale.to(tokens.dtype) + self.shift.to(tokens.dtype)

    def logits(self, tokens: Tensor) -> Tensor:
        channels = tokens.shape[-1]
        member = self.group_of(channels, tokens.device).unsqueeze(-1) == torch.arange(self.groups, device=tokens.device)
        queries = self.query.to(tokens.dtype).mT * member  # one for each head, (C, heads)
        folded = self.key.to(tokens.dtype).mT @ queries / math.sqrt(channels / self.groups)
        return self._normalise(tokens) @ folded

    def values(self, tokens: Tensor) -> Tensor:
        return nn.functional.linear(self._normalise(tokens), self.value.to(tokens.dtype), self.bias.to(tokens.dtype))


@register("first_order", "efficient_probe", "efficient_probe(2)")
class EfficientProbe(AttentionPool):
    """Attention with several learned queries on the features themselves, each for its share of the channels of W_v x.

    Query m has the weights softmax_n(q_m · x_n / √C). There are neither keys nor heads, hence few parameters: C(M + C).

    Args:
        channels: C.
        queries: M; at most C.
        seed: determines the initial weights.

    Reference: Psomas et al., "Attention, Please! Revisiting Attentive Probing Through the Lens of Efficiency", ICLR
    2026.
    """

    def __init__(self, channels: int, queries: int = 32, *, seed: int = 0) -> None:
        super().__init__(channels, positive_int("efficient_probe", "queries", queries))
        generator = torch.Generator().manual_seed(seed)
        self.queries = _queries(self.groups, channels, generator)
        self.value = _linear(channels, generator)

    def logits(self, tokens: Tensor) -> Tensor:
        return tokens @ self.queries.to(tokens.dtype).mT / math.sqrt(tokens.shape[-1])

    def values(self, tokens: Tensor) -> Tensor:
        return tokens @ self.value.to(tokens.dtype).mT


@register("first_order", "simpool", "simpool(2)")
class SimPool(FirstOrder):
    """Attention whose query is the mean, without parameters: see `polycov.functional.simpool`.

    Args:
        channels: C.
        gamma: γ; the paper takes 2 for convolutional networks and 1.25 for transformers.
    """

    def __init__(self, channels: int, gamma: float = 2.0) -> None:
        super().__init__(channels)
        self.gamma = float(finite_number("simpool", "gamma", gamma, 0, 100))

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        return simpool(tokens, self.gamma, weights)

    def shares(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        """The result divided in proportion to the terms of its sum, as for `gem`."""
        logs = _simpool_logs(tokens, self.gamma, weights)
        return softmax(logs, weights) * (log_sum(logs, weights).unsqueeze(1) / self.gamma).exp()

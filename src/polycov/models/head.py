"""The layers after a backbone: reduction, pool, linear classifier."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError, known, positive_int
from polycov.pooling.methods import create_pool, is_first_order
from polycov.pooling.pool import Pool
from polycov.pooling.source import Channels

Reduction = Literal["relu", "linear"]
DEFAULT_CHANNELS = 256  # that local features are reduced to before training
PROBE_CHANNELS = 128


def default_channels(pool: str, width: int, *, probe: bool) -> int:
    """Returns the channels that local features are reduced to unless the user says otherwise; 0 for no reduction.

    Args:
        pool: the name of a method, or a spec.
        width: channels of the local features.
        probe: whether reduction and classifier are solved in closed form rather than trained. A probe leaves the
            features of first-order pools as they are.

    Example:
        >>> default_channels("isqrt-cov", 320, probe=False), default_channels("isqrt-cov", 320, probe=True)
        (256, 128)
        >>> default_channels("average", 320, probe=False), default_channels("average", 320, probe=True)
        (256, 0)
    """
    if not probe:
        return DEFAULT_CHANNELS
    return 0 if is_first_order(pool) else min(PROBE_CHANNELS, width)


class PoolingHead(nn.Module):
    """Local features → 1×1 convolution to ``channels``, BatchNorm, ReLU → pool → linear classifier.

    Args:
        width: channels of the local features; for a pool that names stages, those of each stage by its name.
        pool: the name of a method, or a spec.
        num_classes: number of classes of the classifier; 0 for none.
        channels: channels after the reduction; 0 for none; None for the default of a probe, see `default_channels`.
            Each of several stages is reduced to so many, or keeps its number if it has fewer.
        reduction: "relu" as above, or "linear", only a 1×1 convolution with bias, such as principal components.
        seed: seed of the sketches.
        drop: rate of dropout before the classifier.
        prefix_tokens: how many of the tokens, at the front, are class and register tokens.
        options: options of the method, such as ``dim``.
    """

    def __init__(
        self,
        width: Channels,
        pool: str,
        num_classes: int,
        channels: int | None = DEFAULT_CHANNELS,
        *,
        reduction: Reduction = "relu",
        seed: int = 0,
        drop: float = 0.0,
        prefix_tokens: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        if channels is None:
            channels = default_channels(pool, width if isinstance(width, int) else max(width.values()), probe=True)
        self.reduction = make_reduction(reduction, width, channels)
        pooled = (channels or width) if isinstance(width, int) else reduced_stages(width, channels)
        self.pool: Pool = create_pool(pool, pooled, seed=seed, prefix_tokens=prefix_tokens, **options)
        self.dropout = nn.Dropout(drop)
        self.classifier: nn.Module = make_classifier(self.pool.out_features, num_classes)

    def reduce(self, features: Tensor) -> Tensor:
        """Returns local features, maps (B, C, H, W) or tokens (B, N, C), reduced."""
        return reduce_features(self.reduction, features)

    def classify(self, features: Tensor) -> Tensor:
        """Returns the logits of local features, (B, num_classes)."""
        return self.classifier(self.dropout(self.pool(self.reduce(features))))


def make_classifier(features: int, num_classes: int) -> nn.Module:
    """Returns a linear layer, or the identity for 0 classes."""
    if num_classes == 0:
        return nn.Identity()
    return nn.Linear(features, positive_int("the classifier", "num_classes", num_classes))


def reduce_features(reduction: nn.Module, features: Tensor) -> Tensor:
    """Returns local features, maps (B, C, H, W) or tokens (B, N, C), after a reduction of maps."""
    if features.ndim == 4 or isinstance(reduction, nn.Identity):
        return reduction(features)
    return reduction(features.mT.unsqueeze(-1)).squeeze(-1).mT  # tokens as maps of width 1, and back


def reduced_stages(widths: Mapping[str, int], channels: int) -> dict[str, int]:
    """Returns the channels of stages after a reduction: so many of a single one, of several at most so many each; 0 for
    no reduction.

    Example:
        >>> reduced_stages({"3": 112, "4": 320}, 128), reduced_stages({"3": 112}, 128)
        ({'3': 112, '4': 128}, {'3': 128})
    """
    if len(widths) == 1:
        return {name: channels or width for name, width in widths.items()}
    return {name: min(channels, width) if channels else width for name, width in widths.items()}


class GroupedReduction(nn.Module):
    """Reductions of the channels of several stages, which stand side by side.

    Args:
        kind: as for `make_reduction`.
        widths: channels of each stage.
        channels: what each is reduced to.
    """

    def __init__(self, kind: str, widths: Sequence[int], channels: Sequence[int]) -> None:
        super().__init__()
        self.widths = list(widths)
        pairs = zip(widths, channels, strict=True)
        self.parts = nn.ModuleList(make_reduction(kind, before, after) for before, after in pairs)

    def forward(self, maps: Tensor) -> Tensor:
        """Returns the reduced maps side by side."""
        return torch.cat([part(x) for part, x in zip(self.parts, maps.split(self.widths, 1), strict=True)], 1)


def linear_parts(reduction: nn.Module) -> list[nn.Conv2d]:
    """Returns the 1×1 convolutions of a linear reduction, one for each stage; none of another reduction.

    Example:
        >>> [part.out_channels for part in linear_parts(make_reduction("linear", {"3": 112, "4": 320}, 128))]
        [112, 128]
    """
    parts = list(reduction.parts) if isinstance(reduction, GroupedReduction) else [reduction]
    return [part for part in parts if isinstance(part, nn.Conv2d)]


def make_reduction(kind: str, width: Channels, channels: int) -> nn.Module:
    """Returns a reduction of maps from ``width`` to so many channels; the identity for 0.

    Of several stages, by their names, each is reduced by itself, see `reduced_stages`.

    Raises:
        PolycovError: if the kind is unknown.
    """
    if kind not in ("relu", "linear"):
        raise PolycovError(f"Unknown reduction {kind!r}. {known(kind, ('relu', 'linear'))}")
    if not channels:
        return nn.Identity()
    positive_int("the reduction", "channels", channels)
    if isinstance(width, Mapping):
        if len(width) > 1:
            return GroupedReduction(kind, list(width.values()), list(reduced_stages(width, channels).values()))
        width = next(iter(width.values()))
    if kind == "linear":
        return nn.Conv2d(width, channels, 1)
    return nn.Sequential(nn.Conv2d(width, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))

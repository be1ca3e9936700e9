"""The layers after a backbone: reduction, pool, linear classifier."""

from typing import Any, Literal

from torch import Tensor, nn

from polycov.errors import PolycovError, known, positive_int
from polycov.pooling.methods import create_pool, is_first_order

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
        width: channels of the local features.
        pool: the name of a method, or a spec.
        num_classes: number of classes of the classifier; 0 for none.
        channels: channels after the reduction; 0 for none; None for the default of a probe, see `default_channels`.
        reduction: "relu" as above, or "linear", only a 1×1 convolution with bias, such as principal components.
        seed: seed of the sketches.
        drop: rate of dropout before the classifier.
        prefix_tokens: how many of the tokens, at the front, are class and register tokens.
        options: options of the method, such as ``dim``.
    """

    def __init__(
        self,
        width: int,
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
            channels = default_channels(pool, width, probe=True)
        self.reduction = make_reduction(reduction, width, channels)
        self.pool = create_pool(pool, channels or width, seed=seed, prefix_tokens=prefix_tokens, **options)
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


def make_reduction(kind: str, width: int, channels: int) -> nn.Module:
    """Returns a reduction of maps from ``width`` to so many channels; the identity for 0.

    Raises:
        PolycovError: if the kind is unknown.
    """
    if kind not in ("relu", "linear"):
        raise PolycovError(f"Unknown reduction {kind!r}. {known(kind, ('relu', 'linear'))}")
    if not channels:
        return nn.Identity()
    positive_int("the reduction", "channels", channels)
    if kind == "linear":
        return nn.Conv2d(width, channels, 1)
    return nn.Sequential(nn.Conv2d(width, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))

"""Local features, as networks return them: maps (B, C, H, W) or tokens (B, N, C)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError


def count_prefix_tokens(network: Any) -> int:
    """Returns how many of the tokens of a timm network, at the front, are class and register tokens."""
    prefix = getattr(network, "num_prefix_tokens", None)
    if prefix is None:  # CaiT, XCiT and others have a class token but not this attribute
        prefix = int(getattr(network, "cls_token", None) is not None)
    return int(prefix)


def as_local_features(network: Any, features: Tensor, keep_prefix: bool = False) -> Tensor:
    """Returns the output of ``forward_features`` of a timm network as maps (B, C, H, W), or as tokens (B, N, C),
    without class and register tokens, unless they are kept.
    """
    if not isinstance(features, Tensor):
        return features  # for `local_channels` to refuse
    if features.ndim == 3:
        return features if keep_prefix else features[:, count_prefix_tokens(network) :]
    if features.ndim == 4 and getattr(network, "output_fmt", "NCHW") == "NHWC":
        return features.permute(0, 3, 1, 2)
    return features


class StageShape(NamedTuple):
    """The local features of an image at a stage.

    Attributes:
        channels: C.
        size: (H, W) of maps, or (N,) of tokens.
    """

    channels: int
    size: tuple[int, ...]

    @property
    def locations(self) -> int:
        """N, the number of locations."""
        return math.prod(self.size)


def join_maps(features: Sequence[Tensor]) -> Tensor:
    """Returns the channels of several maps (B, C, H, W) side by side, in the resolution of the finest.

    A location of a coarser map is repeated, so that, if sizes are multiples, its mean and covariance do not change.
    Tokens (B, N, C) stand where the maps with as many locations have them.

    Example:
        >>> join_maps([torch.zeros(1, 3, 4, 4), torch.ones(1, 2, 2, 2)]).shape
        torch.Size([1, 5, 4, 4])

    Raises:
        PolycovError: if there are tokens without a map of as many locations.
    """
    if len(features) == 1:
        return features[0]
    sizes = {math.prod(x.shape[2:]): tuple(x.shape[2:]) for x in features if x.ndim == 4}
    maps = [x if x.ndim == 4 else _as_maps(x, sizes) for x in features]
    size = max((tuple(x.shape[2:]) for x in maps), key=math.prod)
    return torch.cat([x if x.shape[2:] == size else nn.functional.interpolate(x, size=size) for x in maps], 1)


def _as_maps(tokens: Tensor, sizes: Mapping[int, tuple[int, ...]]) -> Tensor:
    """Tokens (B, N, C) as maps (B, C, H, W), by the H and W for each N."""
    if tokens.shape[1] not in sizes:
        raise PolycovError(f"{tokens.shape[1]} tokens of one stage cannot stand beside the maps of others.")
    return tokens.mT.unflatten(2, sizes[tokens.shape[1]])


def split_maps(joined: Tensor, stages: Sequence[StageShape]) -> list[Tensor]:
    """Returns the features of each stage at its own locations, from those that `join_maps` put side by side.

    Example:
        >>> coarse, fine = torch.rand(1, 2, 3, 3), torch.rand(1, 4, 7, 7)
        >>> parts = split_maps(join_maps([coarse, fine]), [StageShape(2, (3, 3)), StageShape(4, (7, 7))])
        >>> [torch.equal(a, b) for a, b in zip(parts, [coarse, fine])]
        [True, True]
    """
    if len(stages) == 1:
        return [joined]
    parts = joined.split([stage.channels for stage in stages], 1)
    return [_at_own_locations(part, stage.size) for part, stage in zip(parts, stages, strict=True)]


def _at_own_locations(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """The first of the locations at which each of a coarser map stands."""
    for dim, count in enumerate(size if len(size) == 2 else (), start=2):
        finer = maps.shape[dim]
        if count < finer:
            first = [-(-i * finer // count) for i in range(count)]
            maps = maps.index_select(dim, torch.tensor(first, device=maps.device))
    return maps


def local_channels(name: str, features: Any) -> int:
    """Returns C, the number of channels of local features.

    Args:
        name: name of the network, for the error message.
        features: its output.

    Raises:
        PolycovError: if they are not maps or tokens, or have only one location.
    """
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        given = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise PolycovError(
            f"The network {name!r} gives no local features: expected maps (B, C, H, W) or tokens (B, N, C), "
            f"got {given}."
        )
    channels = features.shape[1 if features.ndim == 4 else 2]
    if features[0].numel() < 2 * channels:
        raise PolycovError(
            f"The network {name!r} gives features of shape {tuple(features.shape)}: fewer than two locations, so there "
            "is nothing to pool."
        )
    return int(channels)

"""Which channels a pool reads, where the features of several stages of a network stand side by side."""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from polycov.errors import PolycovError, known, positive_int
from polycov.pooling.registry import register

Channels = int | Mapping[str, int]  # C, or the channels of each stage by its name, in their order

_NUMBER = r"(?:0|[1-9]\d*)"
NAME = re.compile(rf"{_NUMBER}(?:\+{_NUMBER})*|(?!auto$)[^\W\d]\w*")  # 4, 3+4, last


def as_groups(channels: Channels) -> dict[str, int]:
    """Returns the channels of each stage by its name; empty for a single number.

    Raises:
        PolycovError: if a name or a number makes no sense.

    Example:
        >>> as_groups({"4": 128, "last": 64}), as_groups(64)
        ({'4': 128, 'last': 64}, {})
    """
    if not isinstance(channels, Mapping):
        return {}
    if not channels:
        raise PolycovError("Expected the channels of at least one stage, such as {'4': 128}, got none.")
    return {stage_name(name): positive_int("a pool", f"channels of stage {name}", n) for name, n in channels.items()}


def stage_name(name: object) -> str:
    """Returns the name of a stage of a network: a number, several joined by +, or a word other than auto.

    Raises:
        PolycovError: if it is none of these.

    Example:
        >>> stage_name(4), stage_name("3+4"), stage_name("last")
        ('4', '3+4', 'last')
    """
    text = str(name) if isinstance(name, int | str) and not isinstance(name, bool) else ""
    if not NAME.fullmatch(text):
        raise PolycovError(f"Expected the name of a stage, such as 4, '3+4' or last, got {name!r}.")
    return text


def in_order(names: Iterable[str | None], chosen: str) -> list[str]:
    """Returns the stages of a pool in the order in which they stand side by side: the chosen one, if a part pools it
    because it names none, then those that are named.

    Example:
        >>> in_order(("last", None, "3"), "4"), in_order(("last", "3"), "4")
        (['4', 'last', '3'], ['last', '3'])
    """
    names = list(names)
    return list(dict.fromkeys([*([chosen] if None in names else []), *filter(None, names)]))


@register("source", "stage", "stage(4)", "stage(last)")
class StageSource(nn.Module):
    """The features of one stage of a network, of those that stand side by side.

    A coarser stage has the resolution of the finest, where each of its locations is repeated. If the sizes are
    multiples, this changes no mean and no covariance; otherwise some locations count more than others.

    Args:
        channels: of each stage by its name, in the order in which they stand side by side.
        name: of the stage: its number, counted from 0; ``last``, the output of the network; or any other word, for
            channels of your own. None for the first.

    Attributes:
        name: of the stage.
        first: its first channel.
        out_channels: the number of its channels.

    Example:
        >>> import torch
        >>> StageSource({"4": 2, "last": 3}, "last")(torch.arange(5.0).view(1, 1, 5))
        tensor([[[2., 3., 4.]]])
    """

    def __init__(self, channels: Mapping[str, int], name: int | str | None) -> None:
        super().__init__()
        self.name = next(iter(channels), "") if name is None else stage_name(name)
        if self.name not in channels:
            if channels:
                raise PolycovError(f"Unknown stage {self.name!r}. {known(self.name, channels)}")
            raise PolycovError(
                f"stage({self.name}) needs the channels of each stage, such as channels={{{self.name!r}: 64}}, got one "
                "number: these are features of a single stage."
            )
        names = list(channels)
        self.first = sum(channels[before] for before in names[: names.index(self.name)])
        self.out_channels = channels[self.name]

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns its channels of tokens (B, N, C)."""
        return tokens[..., self.first : self.first + self.out_channels]

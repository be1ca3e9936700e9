"""What is compared: every method at every dimension it can have, for every seed."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from polycov.errors import PolycovError
from polycov.methods import create_pool, list_methods, method_options

FEWER = "fewer-channels"  # the full triangle of isqrt-cov on as many channels as the dimension has room for
METHODS = (
    "average",
    "gem",
    "isqrt-cov",
    FEWER,
    "monet-2-ts",
    "monet-2-rm",
    "ipccp-ts",
    "ipccp-rm",
    "ipccp-cs",
    "ipccp-fit",
)


@dataclass(frozen=True)
class Setting:
    """One cell of the grid.

    Attributes:
        method: a method, a spec, or ``fewer-channels``.
        dim: asked for; None where the method has its own.
        seed: of the sketch and of the validation part.
    """

    method: str
    dim: int | None
    seed: int

    @property
    def key(self) -> str:
        """A name for it that can be that of a file."""
        method = re.sub(r"[^a-z0-9.]+", "-", self.method.lower()).strip("-")
        return f"{method}_{self.dim or 'own'}_{self.seed}"

    @property
    def pool(self) -> tuple[str, int | None]:
        """The method and dimension of its pool."""
        return ("isqrt-cov", None) if self.method == FEWER else (self.method, self.dim)

    def channels(self, most: int) -> int:
        """The channels before the pool: ``most``, or as many as the triangle has room for."""
        if self.method != FEWER or self.dim is None:
            return most
        return min(most, (math.isqrt(8 * self.dim + 1) - 1) // 2)


def split_list(text: str) -> list[str]:
    """Splits at commas that are not within parentheses.

    Example:
        >>> split_list("average, power(0.5, 3) | triu,gem")
        ['average', 'power(0.5, 3) | triu', 'gem']
    """
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def parse_methods(text: str) -> list[str]:
    """Returns the methods of a list, each checked.

    Raises:
        PolycovError: if there are none, one twice, or one unknown.
    """
    methods = split_list(text)
    if not methods:
        raise PolycovError(f"Expected methods, such as {','.join(list_methods()[:3])}, got {text!r}.")
    for method in methods:
        if method != FEWER:
            create_pool(method, 64, dim=8 if "dim" in method_options(method) else None)
        if methods.count(method) > 1:
            raise PolycovError(f"The method {method!r} is there twice.")
    return methods


def parse_dims(text: str) -> list[int]:
    """Returns the dimensions of a list, in order.

    Raises:
        PolycovError: if one is not a positive integer.
    """
    dims = []
    for part in split_list(text):
        if not part.isdigit() or not 0 < int(part) < 2**31:
            raise PolycovError(f"Expected dimensions such as 512,1024, got {part!r}.")
        dims.append(int(part))
    if not dims:
        raise PolycovError(f"Expected dimensions such as 512,1024, got {text!r}.")
    return sorted(set(dims))


def grid(methods: Sequence[str], dims: Sequence[int], seeds: int, channels: int, samples: int) -> list[Setting]:
    """Returns all settings, seed by seed; those that cannot be are left out.

    Args:
        methods: to compare.
        dims: of methods whose dimension is free.
        seeds: how many.
        channels: before the pool; fewer channels need fewer dimensions than their triangle.
        samples: training pictures; a fitted projection needs as many as it has dimensions.
    """
    settings = []
    for seed in range(seeds):
        for method in methods:
            if method == FEWER:
                free: Sequence[int | None] = [dim for dim in dims if dim < channels * (channels + 1) // 2]
            elif "dim" not in method_options(method):
                free = [None]
            else:
                free = [dim for dim in dims if method != "ipccp-fit" or dim <= samples]
            settings += [Setting(method, dim, seed) for dim in free]
    return settings

"""What is compared: every method at every dimension it can have, for every seed."""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from polycov.errors import PolycovError
from polycov.pooling.methods import list_methods, method_options, method_spec
from polycov.pooling.spec import parse_spec

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
        method = self.method
        if method != FEWER and method not in list_methods():  # specs that differ in a sign or a bracket are different
            digest = hashlib.sha256(method.encode()).hexdigest()[:8]
            method = re.sub(r"[^a-z0-9.]+", "-", method.lower()).strip("-")[:60] + f"-{digest}"
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
    given = split_list(text)
    if not given:
        raise PolycovError(f"Expected methods, such as {','.join(list_methods()[:3])}, got {text!r}.")
    methods = []
    for method in given:
        if method != FEWER and method not in list_methods():
            method = method_spec(method)  # in its canonical form
        if method in methods:
            raise PolycovError(f"The method {method!r} is there twice.")
        methods.append(method)
    return methods


def fitted_to(method: str, dim: int | None) -> int:
    """Returns how many training pictures a fitted projection in a method needs; 0 if it has none."""
    if method == FEWER:
        return 0
    spec = parse_spec(method_spec(method, dim=dim if "dim" in method_options(method) else None))
    return max((dict(stage.arguments)["dim"] for stage in spec.post if stage.stage.name == "project"), default=0)


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
    """Returns all settings, seed by seed. Left out are projections that the training pictures cannot be fitted to.

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
                free = list(dims)
            settings += [Setting(method, dim, seed) for dim in free if fitted_to(method, dim) <= samples]
    return settings

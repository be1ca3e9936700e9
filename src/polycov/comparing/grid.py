"""What is compared: every method at every dimension it can have, for every seed."""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from polycov.errors import PolycovError
from polycov.pooling.methods import fitted_dim, list_methods, method_options, method_spec

FEWER_CHANNELS = "fewer-channels"  # the full triangle of isqrt-cov on as many channels as fit the dimension
METHODS = (
    "average",
    "gem",
    "isqrt-cov",
    FEWER_CHANNELS,
    "monet-2-ts",
    "monet-2-rm",
    "ipccp-ts",
    "ipccp-rm",
    "ipccp-cs",
    "ipccp-fit",
)
DIMS = (512, 1024, 2048, 4096, 8192)

SettingKey = tuple[str, int | None, int]  # method, dimension, seed


@dataclass(frozen=True)
class Setting:
    """One cell of the grid.

    Attributes:
        method: a method, a spec, or ``fewer-channels``.
        dim: the dimension asked for; None where the method has its own.
        seed: seed of the sketch and of the validation images.
    """

    method: str
    dim: int | None
    seed: int

    @property
    def key(self) -> SettingKey:
        """Method, dimension and seed."""
        return self.method, self.dim, self.seed

    @property
    def file_name(self) -> str:
        """A unique name that can be a file's."""
        method = self.method
        if method != FEWER_CHANNELS and method not in list_methods():  # specs may differ in a sign or a bracket only
            digest = hashlib.sha256(method.encode()).hexdigest()[:8]
            method = re.sub(r"[^a-z0-9.]+", "-", method.lower()).strip("-")[:60] + f"-{digest}"
        return f"{method}_{self.dim or 'own'}_{self.seed}"

    @property
    def pool(self) -> tuple[str, int | None]:
        """The method and dimension of its pool."""
        return ("isqrt-cov", None) if self.method == FEWER_CHANNELS else (self.method, self.dim)

    def channels(self, most: int) -> int:
        """Returns the channels before the pool: ``most``, or as many as the triangle has room for."""
        if self.method != FEWER_CHANNELS or self.dim is None:
            return most
        return min(most, (math.isqrt(8 * self.dim + 1) - 1) // 2)

    def __str__(self) -> str:
        dimension = "" if self.dim is None else f", {self.dim}"
        return f"{self.method}{dimension}, seed {self.seed}"


def check_methods(methods: Sequence[str]) -> list[str]:
    """Returns the methods, specs in their canonical form.

    Raises:
        PolycovError: if there are none, or one is unknown or a duplicate.
    """
    if not methods:
        raise PolycovError(f"Expected methods, such as {' '.join(list_methods()[:3])}.")
    checked: list[str] = []
    for method in methods:
        if method != FEWER_CHANNELS and method not in list_methods():
            method = method_spec(method)
        if method in checked:
            raise PolycovError(f"Duplicate method {method!r}.")
        checked.append(method)
    return checked


def check_dims(dims: Sequence[int]) -> list[int]:
    """Returns the dimensions in order.

    Raises:
        PolycovError: if there are none, or one is not a positive integer.
    """
    for dim in dims:
        if isinstance(dim, bool) or not isinstance(dim, int) or not 0 < dim < 2**31:
            raise PolycovError(f"Expected dimensions such as 512 1024, got {dim!r}.")
    if not dims:
        raise PolycovError("Expected dimensions such as 512 1024, got none.")
    return sorted(set(dims))


def projection_dim(method: str, dim: int | None) -> int:
    """Returns how many training images the fitted projection of a method needs; 0 if it has none."""
    return 0 if method == FEWER_CHANNELS else fitted_dim(method, dim)


def grid(methods: Sequence[str], dims: Sequence[int], seeds: int, channels: int, samples: int) -> list[Setting]:
    """Returns all settings, seed by seed, without projections that there are too few training images to fit.

    Args:
        methods: methods to compare.
        dims: dimensions of methods whose dimension is free.
        seeds: how many.
        channels: channels before the pool; ``fewer-channels`` needs dimensions below the size of their triangle.
        samples: training images; a fitted projection needs as many as it has dimensions.
    """
    settings = []
    for seed in range(seeds):
        for method in methods:
            if method == FEWER_CHANNELS:
                free: Sequence[int | None] = [dim for dim in dims if dim < channels * (channels + 1) // 2]
            elif "dim" not in method_options(method):
                free = [None]
            else:
                free = list(dims)
            settings += [Setting(method, dim, seed) for dim in free if projection_dim(method, dim) <= samples]
    return settings

"""What is compared: every method at every dimension it can have, for every seed."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from polycov.errors import PolycovError
from polycov.pooling.fitting import supported_size
from polycov.pooling.methods import (
    fitted_dim,
    is_first_order,
    list_methods,
    method_options,
    method_spec,
    parse_method,
    reads_class_token,
    stage_names,
)
from polycov.pooling.source import Channels, in_order

FEWER_CHANNELS = "fewer-channels"  # the full triangle of isqrt-cov on as many channels as fit the dimension
AVERAGE_LAST = "average-last"  # the average of the last layer of the network, no matter which stage the others pool
METHODS = (
    "average",
    AVERAGE_LAST,
    "gem",
    "isqrt-cov",
    FEWER_CHANNELS,
    "monet-2-ts",
    "monet-2-rm",
    "ipccp-ts",
    "ipccp-rm",
    "ipccp-cs",
    "ipccp-fit",
    "mean-cov",
    "mean-cov-fit",
    "auto-fit",
)
OWN_METHODS = {FEWER_CHANNELS: "isqrt-cov", AVERAGE_LAST: "average"}  # of a comparison, and what they pool with
DIMS = (512, 1024, 2048, 4096, 8192)

SettingKey = tuple[str, int | None, int]  # method, dimension, seed


@dataclass(frozen=True)
class Setting:
    """One cell of the grid.

    Attributes:
        method: a method, a spec, ``fewer-channels`` or ``average-last``.
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
        """A unique name, valid as a file name."""
        method = self.method
        if method not in (*OWN_METHODS, *list_methods()):  # specs may differ in a sign or a bracket only
            digest = hashlib.sha256(method.encode()).hexdigest()[:8]
            method = re.sub(r"[^a-z0-9.]+", "-", method.lower()).strip("-")[:60] + f"-{digest}"
        return f"{method}_{self.dim or 'own'}_{self.seed}"

    @property
    def pool(self) -> tuple[str, int | None]:
        """The method and dimension of its pool."""
        return (OWN_METHODS[self.method], None) if self.method in OWN_METHODS else (self.method, self.dim)

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
        if method not in (*OWN_METHODS, *list_methods()):
            method = method_spec(method)
        if method in checked:
            raise PolycovError(f"Duplicate method {method!r}.")
        checked.append(method)
    return checked


def first_order_pool(method: str) -> str | None:
    """Returns the pool of local features that a first-order method begins with; None for others, side by side, and of
    stages by name.

    Example:
        >>> first_order_pool("gem"), first_order_pool("average | l2"), first_order_pool("stage(3) | average")
        ('gem(3)', 'average', None)
    """
    if method in OWN_METHODS:
        return None
    spec = parse_method(method)
    if not spec.first_order or spec.blocks or spec.source is not None or reads_class_token(method):
        return None
    return str(spec.aggregation[0])


def first_order_pools(methods: Sequence[str]) -> list[str]:
    """Returns the pools that first-order methods begin with, each once."""
    return list(dict.fromkeys(pool for method in methods if (pool := first_order_pool(method)) is not None))


def named_stages(methods: Sequence[str], chosen: str) -> dict[str, bool]:
    """Returns the stages of the network that methods pool by name, and whether a first-order one needs all channels.

    Args:
        methods: methods.
        chosen: the stage that is pooled by parts that name none.

    Example:
        >>> named_stages(["gem", "[stage(last) | average, max]", "stage(3) | covariance | sqrt(5) | triu"], "4")
        {'4': True, 'last': True, '3': False}
    """
    named: dict[str, bool] = {}
    for method in methods:
        names = (None,) if method in OWN_METHODS else stage_names(method)
        for name in in_order(names, chosen) if names != (None,) else ():
            named[name] = named.get(name, False) or is_first_order(method)
    return named


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


@dataclass(frozen=True)
class Limits:
    """What the data allows.

    Attributes:
        channels: before second-order pools; ``fewer-channels`` needs dimensions below the size of their triangle.
        width: channels before first-order pools.
        samples: training images; a fitted projection has at most as many dimensions.
        last: whether the features are those of the last layer, so that ``average-last`` is ``average``.
        stages: all channels of each stage of the network, and those it is reduced to; first the stage that is pooled by
            methods that name none.
    """

    channels: int
    width: int
    samples: int
    last: bool = False
    stages: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def channels_before(self, method: str, dim: int | None) -> Channels | None:
        """Returns the channels before a pool; of one that names stages, those of each, or None if they are unknown."""
        first_order, names = is_first_order(method, dim=dim), stage_names(method)
        if names == (None,):
            return self.width if first_order else self.channels
        if not self.stages:
            return None
        return {name: self.stages[name][0 if first_order else 1] for name in in_order(names, next(iter(self.stages)))}

    @property
    def triangle(self) -> int:
        """The dimensions of uncompressed isqrt-cov."""
        return self.channels * (self.channels + 1) // 2


Cell = tuple[str, int | None]  # method, dimension


def _cells(method: str, dims: Sequence[int], limits: Limits) -> dict[int | None, Cell | None]:
    """What is measured for each dimension asked for: the same, a smaller one that can be fitted, or nothing."""
    if method == FEWER_CHANNELS:
        return {dim: (method, dim) if dim < limits.triangle else None for dim in dims}
    if method == AVERAGE_LAST:
        return {None: None if limits.last else (method, None)}
    asked: Sequence[int | None] = dims if "dim" in method_options(method) else [None]
    cells: dict[int | None, Cell | None] = {}
    for dim in asked:
        channels = limits.channels_before(method, dim)
        cells[dim] = supported_size(method, dim, samples=limits.samples, channels=channels)
    return cells


def grid(methods: Sequence[str], dims: Sequence[int], seeds: int, limits: Limits) -> list[Setting]:
    """Returns all settings, seed by seed, each once.

    Projections that cannot be fitted at a dimension are measured at the largest at which they can.

    Args:
        methods: methods to compare.
        dims: dimensions of methods whose dimension is free.
        seeds: how many.
        limits: what the data allows.
    """
    cells = dict.fromkeys(cell for method in methods for cell in _cells(method, dims, limits).values() if cell)
    return [Setting(*cell, seed) for seed in range(seeds) for cell in cells]


def grid_notes(methods: Sequence[str], dims: Sequence[int], limits: Limits) -> list[str]:
    """Returns, in words, what is not measured as asked for, and why."""
    notes = []
    for method in methods:
        changed: dict[Cell | None, list[int | None]] = {}
        for dim, cell in _cells(method, dims, limits).items():
            if cell != (method, dim):
                changed.setdefault(cell, []).append(dim)
        for cell, asked in changed.items():
            at = f" at {', '.join(map(str, asked))}" if None not in asked else ""
            notes.append(f"{method}{at}: {_reason(method, cell, limits)}")
    return notes


def _reason(method: str, cell: Cell | None, limits: Limits) -> str:
    if method == AVERAGE_LAST:
        return "skipped, since it is average: these are the features of the last layer"
    if cell is None:
        return f"skipped, since on all {limits.channels} channels ({limits.triangle} dimensions) it is isqrt-cov"
    size = fitted_dim(*cell)
    if size == limits.samples:
        return f"measured at {size} dimensions, as many as the smallest training split over the seeds has images"
    return f"measured at {size} dimensions, as many as the features before the projection have"

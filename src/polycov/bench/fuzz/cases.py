"""Random cases: a number determines the pool, the features and their weights."""

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import polycov
from polycov.bench.fuzz.moments import Array
from polycov.errors import PolycovError
from polycov.pooling.methods import create_pool, reads_class_token

FREE = (
    *(f"covariance | sqrt({k}) | triu" for k in (1, 2, 7, 8, 12, 13, 30, 100)),
    "gaussian | sqrt(5) | tensor_sketch(24)",
    "gaussian | sqrt(20) | random_maclaurin(24)",
    "bilinear | sqrt(12, gradient=lyapunov) | flatten",
    "covariance | sqrt(25, gradient=lyapunov) | triu",
    "covariance | sqrt_minimax(5, 5, norm=square) | count_sketch(12)",
    "bilinear | sqrt_minimax(3, 9, 9, low=0.03) | triu",
    "gaussian | power(0.3) | triu",
    "covariance | power(0.7, 12) | tensor_sketch(24)",
    "covariance | power(1.5) | flatten",
    "bilinear | log(16) | tensor_sketch(24)",
    "gaussian(constant=3) | sqrt(5) | rotated(24)",
    "gaussian | log(exact) | random_maclaurin(24)",
    "covariance | polynomial(0, 2, -1, 0.5, unit_trace=True) | tensor_sketch(24)",
    "covariance | tangent(0.3) | triu",
    "covariance(shrinkage=oas) | log(exact) | triu",
    "covariance(shrinkage=ledoit_wolf) | sqrt(5) | triu",
    "covariance(shrinkage=0.1) | log_cholesky | flatten",
    "covariance | sqrt(5) | triu | signed_power(0.7) | l2",
    "gaussian | sqrt(5) | triu | project(2)",
    "[average | l2, covariance | sqrt(exact) | triu | l2]",
    "[max, gaussian | sqrt(5) | tensor_sketch(8)] | balance",
    "self_cross(3, heads=2) | sqrt(5) | flatten",
    "self_cross(2, statistic=bilinear) | power(0.7) | flatten",
    "cross | identity | tensor_sketch(24) | signed_sqrt | l2",
    "cross(covariance) | sqrt(exact) | flatten",
    "cross(gaussian) | sqrt(5) | random_maclaurin(24)",
)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float32, torch.float64)
SINGULAR = ("low rank", "dead", "duplicated", "constant", "zeros")
STRUCTURES = ("full", "full", *SINGULAR, "small spread", "relu", "far apart")
LAYOUTS = ("tokens", "maps", "channels last", "strided", "expanded")
ROUTES = ("auto", "auto", "covariance", "gram", "paper")
KINDS = ("none", "none", "mask", "integers", "weights")


@dataclass
class Case:
    """One case: what is pooled, and how.

    Attributes:
        number: determines everything.
        pool: the pool.
        x: the features as the pool gets them.
        weights: of the locations, as the pool gets them, or None.
        tokens: the features, (B, N, C), in float64.
        bad: the sample with NaN or Inf, or None.
        gradient: whether the gradient is computed too.
        description: for a person.
    """

    number: int
    pool: Any
    x: Tensor
    weights: Tensor | None
    tokens: Array
    bad: int | None
    gradient: bool
    description: str


@cache
def specs() -> list[str]:
    """Returns every registered method, at a small dimension, and the free specs; a class token is only picked."""
    result = []
    for name in (name for name in polycov.list_methods() if not reads_class_token(name)):
        method = polycov.get_method(name)
        small = {"dim": 2 if "fit" in name else 24, "width": 12}
        result.append(method(**{k: v for k, v in small.items() if k in inspect.signature(method).parameters}))
    return list(dict.fromkeys([*result, *FREE]))


@cache
def _pool(spec: str, channels: int, route: str, seed: int) -> Any:
    """A pool in evaluation mode, fitted if necessary; by another route if this one does not exist."""
    sides: Any = (channels, max(channels - 1, 1)) if spec.startswith("cross") else channels
    options: dict[str, Any] = {} if "cross" in spec else {"route": route}
    try:
        pool = create_pool(spec, sides, seed=seed, **options)
    except PolycovError:
        if route == "auto":
            raise
        return _pool(spec, channels, "auto", seed)
    if pool.fittable:
        data = torch.randn(20, 6, channels, generator=torch.Generator().manual_seed(seed))
        pool.fit([(data, torch.arange(20) % 3)])
    return pool.eval()


def make_case(number: int) -> Case:
    """Returns the case of a number."""
    rng = np.random.default_rng(number)
    everything = specs()
    spec = everything[number % len(everything)]
    large = rng.random() < 0.002
    small = [2, 3, 4, 5, 8, 11] if "project" in spec else [1, 2, 3, 4, 5, 8]
    channels = int(rng.choice([96, 160] if large else small))
    pool = _pool(spec, channels, str(rng.choice(ROUTES)), int(rng.integers(2)))
    width = pool.channels
    batch = int(rng.choice([0, 1, 1, 2, 3], p=[0.02, 0.28, 0.3, 0.3, 0.1]))
    rows, columns = (int(rng.integers(1, 20 if large else 7)) for _ in range(2))
    dtype = DTYPES[rng.integers(len(DTYPES))]
    structure, layout = str(rng.choice(STRUCTURES)), str(rng.choice(LAYOUTS))
    values = _values(rng, structure, batch, rows * columns, width) * _magnitude(rng, dtype)
    tokens = torch.from_numpy(values).to(dtype)
    kind = str(rng.choice(KINDS))
    weights = _weights(rng, kind, batch, rows * columns)
    bad = int(rng.integers(batch)) if batch and rng.random() < 0.05 else None
    if layout == "expanded":  # all samples are one, without a copy
        tokens, bad = tokens[:1].expand(batch, -1, -1) if batch else tokens, None
    if bad is not None:
        token = 0 if weights is None else int((weights[bad] > 0).int().argmax())
        tokens[bad, token, int(rng.integers(width))] = float(rng.choice([np.nan, np.inf]))
    if weights is not None and rng.random() < 0.3 and layout != "expanded":  # what is hidden does not matter
        tokens = torch.where((weights > 0).unsqueeze(-1), tokens, torch.nan)
    gradient = rng.random() < 0.5
    what = f"{pool!r}, {dtype}, {layout} {tuple(tokens.shape)}, {structure}, weights: {kind}, sample with NaN: {bad}"
    x = _laid_out(tokens, layout, rows, columns)
    return Case(number, pool, x, weights, tokens.double().numpy(), bad, gradient, what)


def _values(rng: np.random.Generator, structure: str, batch: int, locations: int, channels: int) -> Array:
    x = rng.standard_normal((batch, locations, channels))
    if structure == "low rank":
        return x[..., : max(channels // 3, 1)] @ rng.standard_normal((max(channels // 3, 1), channels))
    if structure == "dead":
        return np.asarray(x * (rng.random(channels) < 0.5))
    if structure == "duplicated":
        return np.asarray(x[..., rng.integers(channels, size=channels)])
    if structure in ("constant", "zeros"):
        return np.broadcast_to(x[:, :1], x.shape) * float(structure == "constant")
    if structure == "small spread":
        return np.asarray(rng.standard_normal(channels) + x * 10 ** rng.uniform(-6, -1))
    if structure == "relu":
        return np.maximum(x, 0)
    if structure == "far apart":
        return np.asarray(x * 10 ** rng.uniform(-6, 0, channels))
    return x


def _magnitude(rng: np.random.Generator, dtype: torch.dtype) -> float:
    low, high = (-6, 4) if dtype == torch.float16 else (-30, 30)
    return float(10 ** rng.uniform(low, high)) if rng.random() < 0.6 else 1.0


def _weights(rng: np.random.Generator, kind: str, batch: int, locations: int) -> Tensor | None:
    if kind == "none":
        return None
    shown = rng.random((batch, locations)) < rng.uniform(0.2, 1)
    shown[:, int(rng.integers(locations))] = True
    if kind != "weights":
        return torch.from_numpy(shown if kind == "mask" else shown.astype(np.int64))
    values = torch.from_numpy(shown * rng.uniform(0.05, 1, shown.shape) * 10 ** rng.uniform(-20, 20))
    return values.to(torch.float32 if rng.random() < 0.7 else torch.float64)


def _laid_out(tokens: Tensor, layout: str, rows: int, columns: int) -> Tensor:
    """The tokens in a layout: maps, channels-last maps, or with other strides."""
    if layout in ("maps", "channels last"):
        maps = tokens.mT.reshape(tokens.shape[0], tokens.shape[2], rows, columns)
        return maps.contiguous(memory_format=torch.channels_last) if layout == "channels last" else maps
    return torch.stack([tokens, tokens], -1)[..., 0] if layout == "strided" else tokens

"""A short tour of the methods: the size, kernel error and time of each. It needs torch alone."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from polycov.pooling.kernel import kernel_error, uncompressed
from polycov.pooling.methods import create_pool, get_method, list_methods, method_options, reads_class_token
from polycov.pooling.pool import Pool

SAMPLES = 16
TRAINING_SAMPLES = 256
FITTED_DIM = 128  # the most dimensions of a fitted projection, which needs as many training samples
CLASSES = 8
BATCH = 32


class TourRow(NamedTuple):
    """The measurements of one method.

    Attributes:
        method: its name.
        dimensions: number of dimensions of its feature.
        milliseconds: per map.
        kernel_error: see `agreement`; None if the method is not compact.
        spec: spec of the method.
    """

    method: str
    dimensions: int
    milliseconds: float
    kernel_error: float | None
    spec: str


def correlated_maps(samples: int, channels: int, side: int, seed: int = 0) -> Tensor:
    """Returns maps (B, C, H, W) that resemble those of a network.

    They are non-negative, with correlations between channels that vary from sample to sample along a few shared
    directions.
    """
    generator = torch.Generator().manual_seed(seed)
    mixes = torch.randn(17, channels, channels, generator=generator) / channels**0.5
    weights = torch.randn(samples, 16, generator=generator) * 0.3
    mix = mixes[0] + torch.einsum("bk,kij->bij", weights, mixes[1:])
    noise = torch.randn(samples, channels, side * side, generator=generator)
    return (0.3 + mix @ noise).relu().unflatten(-1, (side, side))


def agreement(method: str, channels: int, dim: int, x: Tensor, train: Tensor, seeds: int = 5) -> float | None:
    """Returns the kernel error of a compact method before any normalisation, root mean square over seeds.

    Args:
        method: the name of a method.
        channels: C.
        dim: D, of the compact feature.
        x: the maps to compare, (B, C, H, W).
        train: maps for a fitted projection.
        seeds: the number of sketches.

    Returns:
        The error, or None if the method is not compact.
    """
    if "dim" not in method_options(method):
        return None
    spec = get_method(method)(dim=dim).removesuffix(" | signed_sqrt | l2")
    pools = [create_pool(spec, channels, seed=seed) for seed in range(seeds)]
    sketch = spec.rpartition(" | ")[0] if pools[0].fittable else spec
    full_spec = uncompressed(sketch)
    if full_spec is None:
        return None
    full = create_pool(full_spec, channels)(x)
    features = [_restored(pool, sketch, x, train) if pool.fittable else pool(x) for pool in pools]
    return (sum(kernel_error(compact, full) ** 2 for compact in features) / seeds) ** 0.5


def _restored(pool: Pool, sketch: str, x: Tensor, train: Tensor) -> Tensor:
    """The sketch as far as a projection fitted to it preserves it: its components, and the mean that it subtracts."""
    before = create_pool(sketch, pool.channels, seed=pool.seed)
    pool.fit(train.split(BATCH))
    weight: Tensor = pool.get_parameter("post.0.weight")
    return before(train).mean(0) + pool(x) @ weight


def _milliseconds(pool: Pool, x: Tensor, repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        pool(x)
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times) / len(x)


def tour(channels: int, side: int, dim: int) -> Iterator[TourRow]:
    """Measures every method on correlated maps, which have no class token.

    Args:
        channels: C.
        side: maps are side × side.
        dim: D, of the compact methods.
    """
    maps = correlated_maps(SAMPLES + TRAINING_SAMPLES, channels, side)
    x, train = maps[:SAMPLES], maps[SAMPLES:]
    for method in list_methods():
        if not reads_class_token(method):
            yield _visit(method, channels, dim, x, train)


@torch.inference_mode()
def _visit(method: str, channels: int, dim: int, x: Tensor, train: Tensor) -> TourRow:
    dim = min(dim, FITTED_DIM) if method.endswith("-fit") else dim
    pool = create_pool(method, channels, dim=dim if "dim" in method_options(method) else None)
    if pool.fittable:
        pool.fit(list(zip(train.split(BATCH), (torch.arange(len(train)) % CLASSES).split(BATCH), strict=True)))
    error = agreement(method, channels, dim, x, train)
    return TourRow(method, pool.out_features, _milliseconds(pool, x), error, pool.spec)

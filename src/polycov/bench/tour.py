"""A one-screen tour of the core: every method's size, agreement with the uncompressed feature, and time.

Run it with ``python -m polycov.bench.tour``.
"""

import argparse
import time

import torch
from torch import Tensor

import polycov
from polycov.pooling.methods import get_method, list_methods, method_options
from polycov.pooling.pool import Pool

# What a compact method is a sketch of: the agreement is measured against this.
UNCOMPRESSED = {"cbp": "bilinear | identity | triu", "monet-2": "mpn-cov", "monet": "g2denet", "ipccp": "isqrt-cov"}


def correlated_maps(samples: int, channels: int, side: int, seed: int = 0) -> Tensor:
    """Returns maps (B, C, H, W) somewhat like a network's: non-negative, with correlations between channels that
    differ from sample to sample along a few shared directions.
    """
    generator = torch.Generator().manual_seed(seed)
    mixes = torch.randn(17, channels, channels, generator=generator) / channels**0.5
    share = torch.randn(samples, 16, generator=generator) * 0.3
    mix = mixes[0] + torch.einsum("bk,kij->bij", share, mixes[1:])
    noise = torch.randn(samples, channels, side * side, generator=generator)
    return (0.3 + mix @ noise).relu().unflatten(-1, (side, side))


def kernel_error(compact: Tensor, full: Tensor) -> float:
    """Returns the relative error of the inner products between samples, ‖K′ − K‖ / ‖K‖."""
    kernel = full.double() @ full.double().mT
    return float((compact.double() @ compact.double().mT - kernel).norm() / kernel.norm())


def agreement(name: str, channels: int, dim: int, x: Tensor, train: Tensor, seeds: int = 5) -> float | None:
    """Returns the kernel error of a compact method, root mean square over seeds; None for uncompressed methods."""
    prefix = name.rpartition("-")[0]
    if prefix not in UNCOMPRESSED:
        return None
    target = polycov.create_pool(UNCOMPRESSED[prefix], channels)(x)
    spec = get_method(name)(dim=dim).removesuffix(" | signed_sqrt | l2")
    squares = []
    for seed in range(seeds):
        pool = polycov.create_pool(spec, channels, seed=seed)
        compact = _restored(pool, x, train) if name == "ipccp-fit" else pool(x)
        squares.append(kernel_error(compact, target) ** 2)
    return (sum(squares) / seeds) ** 0.5


def _restored(pool: Pool, x: Tensor, train: Tensor) -> Tensor:
    """What a fitted projection keeps of the sketch before it: its components, and the mean that it subtracts."""
    sketch = polycov.create_pool(pool.spec.rpartition(" | ")[0], pool.channels, seed=pool.seed)
    pool.fit(train.split(32))
    weight: Tensor = pool.get_parameter("post.0.weight")
    return sketch(train).mean(0) + pool(x) @ weight


def _milliseconds(pool: Pool, x: Tensor, repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        pool(x)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times) / len(x)


def main() -> None:
    """Prints the tour."""
    parser = argparse.ArgumentParser(prog="python -m polycov.bench.tour", description=__doc__)
    parser.add_argument("--channels", type=int, default=128, help="channels of the features (default %(default)s)")
    parser.add_argument("--side", type=int, default=14, help="maps are side × side (default %(default)s)")
    parser.add_argument("--dim", type=int, default=2048, help="of the compact methods (default %(default)s)")
    options = parser.parse_args()
    maps = correlated_maps(16 + 256, options.channels, options.side)
    x, train = maps[:16], maps[16:]

    print(f"polycov {polycov.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"features: {len(x)} maps of {options.channels} channels, {options.side}×{options.side} locations\n")
    print(f"{'method':<18} {'dims':>6} {'ms/map':>7} {'kernel error':>13}  spec")
    with torch.inference_mode():
        for name in list_methods():
            free = "dim" in method_options(name)
            dim = min(options.dim, 128) if name == "ipccp-fit" else options.dim
            pool = polycov.create_pool(name, options.channels, dim=dim if free else None)
            if name == "ipccp-fit":
                pool.fit(train.split(32))
            error = agreement(name, options.channels, dim, x, train)
            text = "" if error is None else f"{100 * error:.1f} %"
            print(f"{name:<18} {pool.out_features:>6} {_milliseconds(pool, x):>7.2f} {text:>13}  {pool.spec}")
    print("\nkernel error: how far inner products between maps are from those of the uncompressed feature (5 seeds).")
    print("Random sketches halve it for four times the dimensions. Papers: polycov.get_method(name).__doc__")


if __name__ == "__main__":
    main()

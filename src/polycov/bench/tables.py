"""The benchmark tables: methods, growth with each size, and choice of route."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polycov.bench.measure import Tick, interleave, peak_memory, quartiles, ratios, time_columns, timed_pass
from polycov.bench.reference import plain_isqrt_cov
from polycov.pooling.functions.newton_schulz import NewtonSchulzSqrt
from polycov.pooling.methods import create_pool, method_options
from polycov.pooling.plan import cheapest_route, route_cost

PLAIN = "isqrt-cov, plain"
PAPER = "ipccp-ts, paper"
MODES = ("eval", "train")
Row = dict[str, Any]
EXACT = "sqrt(exact)"
ROOTS = (
    "sqrt(5)",
    "sqrt(3)",
    "sqrt(7)",
    "sqrt(12)",
    EXACT,
    "sqrt_taylor(11)",
    "sqrt_pade(5)",
    "sqrt_minimax(5)",
    "sqrt_minimax(9)",
    "sqrt_minimax(9, norm=trace)",
    "sqrt_minimax(9, norm=square)",
    "sqrt_minimax(5, 5, low=0.1)",
    "sqrt_minimax(3, 9, 9, low=0.03)",
)


@dataclass(frozen=True)
class Shape:
    """The size of a problem: B samples of N locations and C channels, D dimensions of the sketch, k iterations."""

    batch: int = 10
    locations: int = 784
    channels: int = 256
    dim: int = 8192
    iterations: int = 5
    dtype: str = "float32"
    device: str = "cpu"

    def features(self, seed: int = 0) -> Tensor:
        """Returns random features after a ReLU, as maps (B, C, N, 1)."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(self.batch, self.channels, self.locations, 1, generator=generator).relu()
        return x.to(self.device, getattr(torch, self.dtype))

    def module(self, name: str) -> Callable[[Tensor], Tensor]:
        """Returns a method by its name, which may end in a route such as ", gram"; or the plain reference."""
        if name == PLAIN:
            return partial(plain_isqrt_cov, iterations=self.iterations)
        method, _, route = name.partition(", ")
        values = {"dim": self.dim, "iterations": self.iterations}
        options: dict[str, Any] = {key: values[key] for key in method_options(method) if key in values}
        if method == "improved-bilinear":
            options.pop("iterations")
        if route:
            options["route"] = route
        pool = create_pool(method, self.channels, **options)
        return pool.to(self.device, getattr(torch, self.dtype))

    def affordable(self, name: str) -> bool:
        """Whether the route in the name takes less than ten times the multiply-adds of the cheapest."""
        function, route = NewtonSchulzSqrt(self.iterations), name.partition(", ")[2]
        if route not in ("covariance", "gram"):
            return True
        best = cheapest_route(function, self.locations, self.channels)
        own, lowest = (route_cost(r, function, self.locations, self.channels) for r in (route, best))
        return own < 10 * lowest


def measure(
    shape: Shape, names: Iterable[str], rounds: int, tick: Tick | None = None, memory: bool = False
) -> list[Row]:
    """Measures methods at one shape in both modes; ratios are relative to the first name."""
    names = list(names)
    x = shape.features()
    rows: list[Row] = []
    for mode in MODES:
        jobs = {name: timed_pass(mode, shape.module(name), x) for name in names}
        times = interleave(jobs, rounds, tick)
        for name in names:
            rows.append(
                {
                    "method": name,
                    "mode": mode,
                    **vars(shape),
                    **time_columns(times[name], times[names[0]]),
                    "peak_mib": peak_memory(jobs[name], shape.device) / 2**20 if memory else None,
                }
            )
    return rows


GROWTH: dict[str, tuple[int, ...]] = {
    "locations": (49, 100, 196, 400, 784, 1600, 3136),
    "channels": (64, 128, 256, 512, 1024),
    "dim": (512, 2048, 8192, 32768),
    "batch": (1, 4, 16),
    "iterations": (1, 3, 5, 7),
}
GROWTH_METHODS = (PLAIN, "isqrt-cov", "ipccp-ts", "ipccp-ts, covariance", "ipccp-ts, gram", "ipccp-cs")


def growth(shape: Shape, rounds: int, tick: Tick | None = None) -> Iterator[Row]:
    """Varies one size at a time."""
    for size, values in GROWTH.items():
        for value in values:
            varied: dict[str, Any] = {size: value}
            here = replace(shape, **varied)
            for row in measure(here, filter(here.affordable, GROWTH_METHODS), rounds, tick):
                yield {"varied": size, **row}


DIMS = (512, 2048, 8192, 32768)


def dims(shape: Shape, rounds: int, tick: Tick | None = None) -> Iterator[Row]:
    """Compares the same method at several dimensions; ratios are relative to the smallest."""
    x = shape.features()
    for method in ("ipccp-ts", "ipccp-cs"):
        for mode in MODES:
            jobs = {str(dim): timed_pass(mode, replace(shape, dim=dim).module(method), x) for dim in DIMS}
            times = interleave(jobs, rounds, tick)
            for dim in DIMS:
                low, middle, high = quartiles(times[str(dim)])
                yield {
                    "method": method,
                    "mode": mode,
                    **vars(replace(shape, dim=dim)),
                    "milliseconds": 1e3 * middle,
                    "lower_quartile": 1e3 * low,
                    "upper_quartile": 1e3 * high,
                    "ratio": quartiles(ratios(times[str(dim)], times[str(DIMS[0])]))[1],
                }


ROUTE_GRID = (
    *((n, c) for c in (64, 128, 256, 512, 768) for n in (16, 49, 100, 196, 256, 400, 784)),
    *((n, c) for c, sides in ((128, (100, 115, 121)), (256, (225, 240)), (512, (441, 484))) for n in sides),
)


def routes(shape: Shape, rounds: int, tick: Tick | None = None) -> Iterator[Row]:
    """Compares the chosen route with the fastest one on a grid of shapes."""
    for locations, channels in ROUTE_GRID:
        here = replace(shape, locations=locations, channels=channels)
        chosen = create_pool("isqrt-cov", channels, iterations=shape.iterations).route_for(locations) or ""
        measured = measure(here, ("isqrt-cov, covariance", "isqrt-cov, gram"), rounds, tick)
        for mode in MODES:
            times = {r["method"].partition(", ")[2]: r["lower_quartile"] for r in measured if r["mode"] == mode}
            yield {
                "mode": mode,
                **vars(here),
                "chosen": chosen,
                "best": min(times, key=lambda route: times[route]),
                "covariance_ms": times["covariance"],
                "gram_ms": times["gram"],
                "chosen_over_best": times[chosen] / min(times.values()),
            }

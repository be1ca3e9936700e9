"""Alternatives that were tried, timed against what the library does, so that they can be tried on other machines."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from polycov.bench.measure import Job, Tick, forward, interleave, quartiles, ratios, training_step
from polycov.bench.peers import unrolled
from polycov.bench.tables import Row, Shape
from polycov.pooling.functions.newton_schulz import NewtonSchulzEigenvalues, newton_schulz
from polycov.pooling.functions.spectral import spectral
from polycov.pooling.moments import scaled_covariance, second_moment
from polycov.pooling.tokens import maps_to_tokens
from polycov.pooling.vectors.buckets import bucket_table
from polycov.pooling.vectors.random_maclaurin import random_maclaurin


def fused(matrix: Tensor, iterations: int) -> Tensor:
    """Fused products, without Z Y in the first iteration and Z in the last: 3k − 3 products."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    step = 1.5 * eye - 0.5 * matrix
    y, z = matrix @ step, step
    for i in range(2, iterations + 1):
        step = torch.baddbmm(eye, z, y, beta=1.5, alpha=-0.5)
        y = y @ step
        if i < iterations:
            z = step @ z
    return y


def folded(x: Tensor) -> Tensor:
    """The covariance as XᵀX/N − μμᵀ: it saves the pass for centring, but loses digits if the mean is large."""
    tokens = maps_to_tokens(x)
    mean = tokens.mean(1)
    return tokens.mT @ tokens / tokens.shape[1] - mean.unsqueeze(2) * mean.unsqueeze(1)


def folding_error(ratio: float = 100.0) -> tuple[float, float]:
    """Returns the relative errors in float32 of `folded` and of our covariance, if the mean is ``ratio`` spreads."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 784, 64, generator=generator) + ratio
    exact = torch.stack([torch.cov(sample.double().mT, correction=0) for sample in x])
    rows, scale = scaled_covariance(x)
    ours = second_moment(rows) * (scale**2)[:, None, None]
    return tuple(float((c.double() - exact).norm() / exact.norm()) for c in (folded(x), ours))  # type: ignore[return-value]


def _iteration(shape: Shape, matrix: Tensor) -> dict[str, dict[str, Job]]:
    k = shape.iterations
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "pairs, self-adjoint backward": lambda a: newton_schulz(a, k),
        "fused, 3k − 3 products, autograd": lambda a: fused(a, k),
        "as published, 3k products, autograd": lambda a: unrolled(a, k),
        "on eigenvalues": lambda a: spectral(a, NewtonSchulzEigenvalues(k)),
    }
    return {
        "iteration, eval": {name: forward(f, matrix) for name, f in functions.items()},
        "iteration, train": {name: training_step(f, matrix) for name, f in functions.items()},
    }


def _covariance(x: Tensor) -> dict[str, Job]:
    def ours(x: Tensor) -> Tensor:
        return second_moment(scaled_covariance(maps_to_tokens(x))[0])

    def plain(x: Tensor) -> Tensor:
        rows = x.flatten(2)
        rows = rows - rows.mean(2, keepdim=True)
        return rows @ rows.mT / rows.shape[2]

    functions = {"shifted, scaled, centred": ours, "centred": plain, "centring folded in": folded}
    return {name: forward(f, x) for name, f in functions.items()}


def _sketch(shape: Shape, matrix: Tensor) -> dict[str, Job]:
    pool: Any = shape.module("ipccp-ts")
    bucket = pool.vector.bucket
    x = matrix.flatten(1) * pool.vector.weight(matrix.dtype)
    table = bucket_table(bucket, shape.dim)
    counts = torch.bincount(bucket, minlength=shape.dim)
    order, offsets = bucket.argsort(stable=True), counts.cumsum(0) - counts

    def scatter() -> Tensor:
        return x.new_zeros(len(x), shape.dim).scatter_add_(1, bucket.expand_as(x), x)

    def gather() -> Tensor:
        padded = torch.nn.functional.pad(x, (0, 1))
        return padded.index_select(1, table.flatten()).view(len(x), *table.shape).sum(1)

    def bag() -> Tensor:
        return torch.nn.functional.embedding_bag(order, x.mT.contiguous(), offsets, mode="sum").mT

    return {"scatter": scatter, "gather by table": gather, "embedding bag": bag}


def _maclaurin(shape: Shape, matrix: Tensor) -> dict[str, Job]:
    pool: Any = shape.module("ipccp-rm")
    left, right = pool.vector.weights

    def blocks(size: int) -> Job:
        pairs = list(zip(left.split(size), right.split(size), strict=True))
        return lambda: torch.cat([((a @ matrix) * b).sum(-1) for a, b in pairs], 1)

    ours: dict[str, Job] = {"as 1 × 1 convolutions": lambda: random_maclaurin(matrix, pool.vector.weights)}
    products = {f"products, blocks of {size}": blocks(size) for size in (128, 512, 2048, shape.dim)}
    one_by_one = {"products, sample by sample": lambda: torch.stack([((left @ q) * right).sum(-1) for q in matrix])}
    return ours | products | one_by_one


def ideas(shape: Shape, rounds: int, tick: Tick | None = None, compile: bool = False) -> Iterator[Row]:
    """Times the alternatives of each group; ratios are relative to the first of the group.

    Args:
        shape: the size of the problem.
        rounds: the number of rounds.
        tick: called after each round.
        compile: also try `torch.compile`.
    """
    x = shape.features()
    rows, _ = scaled_covariance(maps_to_tokens(x))
    matrix = second_moment(rows)
    matrix = matrix / matrix.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]
    groups = _iteration(shape, matrix)
    groups |= {"covariance, eval": _covariance(x), "tensor sketch, eval": _sketch(shape, matrix)}
    groups["random Maclaurin, eval"] = _maclaurin(shape, matrix)
    if compile:
        pool: Any = shape.module("ipccp-ts")
        compiled = torch.compile(pool, fullgraph=True)
        for mode, job in (("eval", forward), ("train", training_step)):
            groups[f"whole ipccp-ts, {mode}"] = {"eager": job(pool, x), "torch.compile": job(compiled, x)}
    for group, jobs in groups.items():
        times = interleave(jobs, rounds, tick)
        first = next(iter(jobs))
        for name in jobs:
            low, middle, high = quartiles([1e3 * t for t in times[name]])
            ratio = quartiles(ratios(times[name], times[first]))[1]
            yield {
                "group": group,
                "idea": name,
                **vars(shape),
                "milliseconds": middle,
                "lower_quartile": low,
                "upper_quartile": high,
                "ratio": ratio,
            }


GROUPS = 5  # two more with compile

"""The feature of any pool in float64, sample by sample, with a bound on the error that a pool may have."""

import math
from functools import cache
from typing import Any

import numpy as np
import torch

from polycov.bench.fuzz import functions
from polycov.bench.fuzz.features import cancellation, first_order, later, numbers, vector
from polycov.bench.fuzz.moments import Array, rows_of, spectrum, weights_of
from polycov.pooling.spec import Spec, parse_spec

# The documented tolerances (docs/numerics.md): relative errors of ‖q(C)‖ in what a function is computed in.
SINGLE = {"sqrt": 3e-5, "sqrt_minimax": 3e-5, "log": 3e-5}
USUAL = {torch.float32: 1e-5, torch.float64: 1e-11}
WIDE = {"log": 1e-8, "log_cholesky": 1e-8, "sparse_inverse": 1e-9}


def tolerance(name: str, arguments: dict[str, Any], wide: bool, size: int) -> float:
    """Returns the relative error that a function of a matrix of this size may have."""
    if not wide:
        return SINGLE.get(name, USUAL[torch.float32])
    exponent = {"sqrt": 0.5, "power": arguments.get("exponent"), "tangent": arguments.get("exponent")}.get(name)
    if exponent is not None:  # eigenvalues below 4e-15 of the trace count as 0
        return float(math.sqrt(size) * functions.FLOOR ** min(exponent, 1.0)) + USUAL[torch.float64]
    return WIDE.get(name, USUAL[torch.float64])


@cache
def _parsed(spec: str) -> Spec:
    return parse_spec(spec)


def reference(pool: Any, tokens: Array, weights: Array | None, double: bool) -> tuple[Array, float]:
    """Returns the feature of one sample, tokens (N, C), and a bound on the relative error of the pool.

    Args:
        pool: the pool, for its spec and the values of hashes, signs and weights.
        tokens: the features as the pool gets them.
        weights: of the tokens, (N,).
        double: whether the pool gets features in float64.
    """
    spec = _parsed(pool.spec)
    if spec.blocks:
        parts = [reference(part, tokens, weights, double) for part in pool.parts]
        value = np.concatenate([part[0] for part in parts])
        errors = [np.linalg.norm(part[0]) * part[1] for part in parts]
        error = float(np.linalg.norm(errors)) / max(float(np.linalg.norm(value)), 1e-300)
    elif spec.first_order:
        stage = spec.aggregation[0]
        value, size = first_order(stage.name, pool.pooling, tokens, weights)
        error = cancellation(size, value) * USUAL[torch.float64 if double else torch.float32]
    elif spec.cross:
        value, error = _cross(pool, spec, tokens, weights, double)
    else:
        value, error = _second_order(pool, spec, tokens, weights, double)
    for stage, module in zip(spec.post, pool.post, strict=True):
        value, error = later(stage.name, dict(stage.arguments), module, value, error)
    return value, error


def _second_order(pool: Any, spec: Spec, tokens: Array, weights: Array | None, double: bool) -> tuple[Array, float]:
    moment, function, last = spec.aggregation
    m = spectrum(moment.name, dict(moment.arguments), tokens, weights)
    arguments = dict(function.arguments)
    wide = double or pool.function.wide
    smallest = torch.finfo(torch.float64 if wide else torch.float32).tiny
    q, size = functions.apply(function.name, arguments, pool.function, m, smallest)
    result = vector(last.name, pool.vector, q, symmetric=True)
    error = tolerance(function.name, arguments, wide, len(q))
    if m.trace == 0 and function.name in ("log", "log_cholesky", "power"):
        return result, math.inf  # the logarithm of 0 is as low as the dtype allows, and f(0) ≠ 0 nearly 0
    return result, error * cancellation(_spread(last.name, pool.vector, size), result)


def _spread(name: str, module: Any, size: float) -> float:
    """The size of a vector whose entries do not cancel."""
    if name == "random_maclaurin":
        w = numbers(module.weights)
        return size * float((np.linalg.norm(w[0], axis=1) * np.linalg.norm(w[1], axis=1)).max())
    return size * (math.sqrt(module.size / len(module.entries)) if name == "rotated" else math.sqrt(2))


def _cross(pool: Any, spec: Spec, tokens: Array, weights: Array | None, double: bool) -> tuple[Array, float]:
    moment, function, last = spec.aggregation
    w = weights_of(weights, len(tokens))
    pairs = [(tokens[:, : pool.sides[0]], tokens[:, pool.sides[0] :])] if spec.inputs == 2 else _reduced(pool, tokens)
    statistic = dict(moment.arguments)["statistic"]
    parts, terms = [], 0.0
    for left, right in pairs:
        a, b = rows_of(statistic, left, w), rows_of(statistic, right, w)
        u, s, v = np.linalg.svd(a.T @ b, full_matrices=False)
        size = float(np.linalg.norm(s))
        values = _singular(function.name, dict(function.arguments), s / (size or 1.0))
        values = values * size**pool.function.degree
        parts.append(vector(last.name, pool.vector, (u * values) @ v, symmetric=False))
        cancelled = max(float(np.linalg.norm(a) * np.linalg.norm(b)) / (size or 1.0), 1.0)
        terms += _spread(last.name, pool.vector, float(np.linalg.norm(values))) * cancelled
    result = np.concatenate(parts)
    wide, sides = double or pool.function.wide, min(pool.moment.sides)
    lost = math.sqrt(sides) * functions.FLOOR ** (pool.function.degree / 2)  # the squares below 4e-15 count as 0
    error = USUAL[torch.float64] + (lost if pool.function.products is None else 0.0) if wide else 3e-5
    return result, error * cancellation(terms, result)


def _reduced(pool: Any, tokens: Array) -> list[tuple[Array, Array]]:
    """The two reductions of each head, of tokens with a mean of their own removed where that changes nothing."""
    if pool.moment.statistic == "covariance":
        tokens = tokens - tokens[np.isfinite(tokens).all(1)][0]
    dim = pool.moment.dim
    weight = numbers(pool.moment.weight).reshape(-1, 2, dim, tokens.shape[1])
    return [(tokens @ left.T, tokens @ right.T) for left, right in weight]


def _singular(name: str, a: dict[str, Any], s: Array) -> Array:
    """F of singular values s whose squares add up to 1."""
    if name == "identity":
        return s
    if name == "power":
        return np.asarray(s ** a["exponent"])
    if a["method"] == "exact":
        return np.sqrt(s)
    y, _ = functions.newton_schulz(s**2, a["method"])
    return np.asarray(s * functions.newton_schulz(y, a["method"])[1])

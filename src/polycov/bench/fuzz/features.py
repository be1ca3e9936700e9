"""Vectors, later stages and first-order pools in NumPy: independent of what is tested."""

import math
from typing import Any

import numpy as np

from polycov.bench.fuzz.moments import Array, weights_of


def numbers(x: Any) -> Array:
    """Returns a tensor as an array in float64, or integers."""
    x = x.detach()
    return np.asarray((x.double() if x.is_floating_point() else x).numpy())


def vector(name: str, module: Any, q: Array, symmetric: bool) -> Array:
    """Returns the vector of a matrix, from the definition; hashes, signs and weights are those of the module."""
    rows, columns = q.shape
    if name == "flatten":
        return q.ravel()
    if name == "random_maclaurin":
        w = numbers(module.weights)
        return np.einsum("da,ab,db->d", w[0, :, :rows], q, w[1, :, :columns]) / math.sqrt(w.shape[1])
    if name == "tensor_sketch":
        h, s, result = numbers(module.hashes), numbers(module.signs), np.zeros(module.out_features)
        buckets = (h[0, :rows, None] + h[1, None, :columns]) % len(result)
        np.add.at(result, buckets.astype(int), s[0, :rows, None] * s[1, None, :columns] * q)
        return result
    entries = _distinct(q, symmetric)
    if name == "triu":
        return entries
    if name == "rotated":
        return _rotated(module, q, symmetric)
    order, result = numbers(module.order).astype(int), np.zeros(module.out_features)
    for i, entry in enumerate(order):
        result[i % len(result)] += entries[entry] * float(module.signs[entry])
    return result


def _distinct(q: Array, symmetric: bool) -> Array:
    """All entries; of a symmetric matrix the upper triangle, times √2 off the diagonal."""
    if not symmetric:
        return q.ravel()
    upper = np.triu_indices(len(q))
    return np.asarray(q[upper] * np.where(upper[0] == upper[1], 1.0, math.sqrt(2)))


def _rotated(module: Any, q: Array, symmetric: bool) -> Array:
    left = numbers(module.rotation)
    turned = left @ q @ (left if symmetric else numbers(module.right)).T
    entries = _distinct(turned, symmetric)
    drawn = numbers(module.entries).astype(int)
    result = np.zeros(module.out_features)
    result[: len(drawn)] = entries[drawn] * math.sqrt(len(entries) / len(drawn))
    return result


def signed_power(v: Array, p: float) -> Array:
    """Returns sign(v) |v|^p; below 1e-12 of the largest entry a straight line."""
    largest = np.abs(v).max(initial=0.0) or 1.0
    x = v / largest
    return np.asarray(x * np.maximum(np.abs(x), 1e-12) ** (p - 1) * largest**p)


def later(name: str, arguments: dict[str, Any], module: Any, v: Array, error: float) -> tuple[Array, float]:
    """Returns the feature after a stage, and a bound on its relative error from that of the feature before."""
    if name in ("signed_sqrt", "signed_power"):
        p = 0.5 if name == "signed_sqrt" else arguments["exponent"]
        scale = np.linalg.norm(v) / (np.abs(v).max(initial=0.0) or 1.0)
        return signed_power(v, p), float(math.sqrt(len(v)) * (error * scale) ** min(p, 1.0) * max(p, 1.0))
    if name == "l2":
        largest = np.abs(v).max(initial=0.0) or 1.0
        return v / largest / (np.linalg.norm(v / largest) or 1.0), 2 * error
    if name == "balance":
        factors = numbers(module.factors)
        return v * factors, error * cancellation(np.linalg.norm(v) * np.abs(factors).max(), v * factors)
    weight, bias = numbers(module.weight), numbers(module.bias)
    result = weight @ v + bias
    return result, error * cancellation(np.linalg.norm(weight, 2) * np.linalg.norm(v) + np.linalg.norm(bias), result)


def cancellation(terms: Any, result: Array) -> float:
    """Returns the size of the terms of a sum over that of the sum, at least 1: the factor of its relative error."""
    return max(float(terms / max(float(np.linalg.norm(result)), 1e-300)), 1.0)


def _softmax(logits: Array, w: Array) -> Array:
    terms = np.where(w[:, None] > 0, w[:, None] * np.exp(logits - logits[w > 0].max(0)), 0.0)
    return np.asarray(terms / terms.sum(0))


def _norm(x: Array) -> Array:
    x = x - x.mean(-1, keepdims=True)
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5))


def first_order(name: str, module: Any, tokens: Array, weights: Array | None) -> tuple[Array, float]:
    """Returns a first-order feature of tokens (N, C), and the size of the terms of its sums."""
    w = weights_of(weights, len(tokens))
    x = np.where(w[:, None] > 0, tokens, 0.0)
    shown, part = x[w > 0], w / w.sum()
    size = float(np.linalg.norm(np.abs(shown).max(0)))
    if name == "average":
        return part @ x, size
    if name == "max":
        return shown.max(0), size
    if name == "gem":
        p, raised = float(module.p.detach()), np.maximum(x, 1e-6)
        top = raised[w > 0].max(0)
        return top * (part @ (np.minimum(raised / top, 1.0) ** p)) ** (1 / p), size
    if name == "simpool":
        weight = _softmax((_norm(x) @ _norm(part @ x) / math.sqrt(x.shape[1]))[:, None], w)
        raised = np.maximum(x - shown.min(), 0) + 1e-6
        top = raised[w > 0].max(0)
        ratio = np.where(w[:, None] > 0, np.minimum(raised / top, 1.0), 0.0)
        return top * (weight * ratio**module.gamma).sum(0) ** (1 / module.gamma), 2 * size
    return _attention(name, module, x, w)


def _attention(name: str, module: Any, x: Array, w: Array) -> tuple[Array, float]:
    channels = x.shape[1]
    group = np.arange(channels) * module.groups // channels
    if name == "efficient_probe":
        logits, values = x @ numbers(module.queries).T / math.sqrt(channels), x @ numbers(module.value).T
    else:
        x = _norm(x) * numbers(module.scale) + numbers(module.shift)
        keys, query = x @ numbers(module.key).T, numbers(module.query)[0]
        heads = range(module.groups)
        logits = np.stack([keys[:, group == h] @ query[group == h] for h in heads], 1)
        logits = logits / math.sqrt(channels / module.groups)
        values = x @ numbers(module.value).T + numbers(module.bias)
    growth = 1 + float(np.abs(logits).max(initial=0.0))  # an error of a logit is a relative error of its weight
    size = growth * float(np.linalg.norm(np.abs(values[w > 0]).max(0))) * math.sqrt(channels)
    return (_softmax(logits, w)[:, group] * values).sum(0), size

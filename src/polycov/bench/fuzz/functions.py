"""The matrix functions in NumPy, on eigenvalues or by their definition: independent of what is tested."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from polycov.bench.fuzz.moments import Array, Spectrum

FLOOR = 4e-15  # eigenvalues below it, as a fraction of the trace, count as 0


def newton_schulz(x: Array, iterations: int) -> tuple[Array, Array]:
    """Returns y and z of the iteration as printed, on numbers."""
    y, z = x.copy(), np.ones_like(x)
    for _ in range(iterations):
        t = 0.5 * (3 - z * y)
        y, z = y * t, t * z
    return y, z


def _interpolated(function: Callable[[Array], Array], degree: int, low: float, x: Array) -> Array:
    """The polynomial that interpolates a function at the Chebyshev nodes of [low, 1]."""
    fit: Any = chebyshev.chebinterpolate  # its annotation accepts no function of arrays
    coefficients = fit(lambda t: function((1 - low) / 2 * t + (1 + low) / 2), degree)
    return np.asarray(chebyshev.chebval((2 * x - 1 - low) / (1 - low), coefficients))


def _minimax(unit: Array, factors: Any, norm: str) -> Array:
    power = {"trace": 1, "frobenius": 2, "square": 4}[norm]
    size = max((unit**power).sum() ** (1 / power), 1e-300) if power > 1 else 1.0
    m = unit / size
    result = m * math.sqrt(size)
    for c in factors:
        t = np.polynomial.polynomial.polyval(m, c)
        result, m = result * t, m * t**2
    return result


def _taylor(unit: Array, degree: int) -> Array:
    size = max(math.sqrt((unit**2).sum()), 1e-300)
    z, term, total = 1 - unit / size, np.ones_like(unit), np.ones_like(unit)
    for k in range(1, degree + 1):
        term = term * z * (k - 1.5) / k
        total = total + term
    return total * math.sqrt((unit**2).sum()) ** 0.5


def _pade(unit: Array, order: int) -> Array:
    """((1+r)^n + (1−r)^n) / ((1+r)^n − (1−r)^n) · r with n = 2m + 1 and r = √x; 1/n at 0."""
    size, n = max(math.sqrt((unit**2).sum()), 1e-300), 2 * order + 1
    r = np.sqrt(unit / size)
    safe = np.where(r > 1e-9, r, 1.0)
    ratio = ((1 - safe) / (1 + safe)) ** n
    return np.where(r > 1e-9, safe * (1 + ratio) / (1 - ratio), 1 / n) * math.sqrt((unit**2).sum()) ** 0.5


def on_eigenvalues(name: str, a: dict[str, Any], module: Any, unit: Array, trace: float) -> Array | None:
    """Returns q(λ) for eigenvalues λ = unit · trace; None for functions that are not of eigenvalues."""
    root = math.sqrt(trace)
    if name == "identity":
        return trace * unit
    if name == "sqrt":
        return root * (np.sqrt(unit) if a["method"] == "exact" else newton_schulz(unit, a["method"])[0])
    if name == "power":
        p = a["exponent"]
        exact = a["method"] == "exact"
        return np.asarray(trace**p * (unit**p if exact else _interpolated(lambda x: x**p, a["method"], 0.0, unit)))
    if name == "log":
        return _log(a, unit) + math.log(trace)
    if name == "polynomial":
        scaled = unit if a["unit_trace"] else unit * trace
        return np.asarray(np.polynomial.polynomial.polyval(scaled, a["coefficients"]))
    if name == "sqrt_minimax":
        return root * _minimax(unit, module.factors, a["norm"])
    if name == "sqrt_taylor":
        return root * _taylor(unit, a["degree"])
    if name == "sqrt_pade":
        return root * _pade(unit, a["order"])
    if name == "tangent":
        return np.asarray(((unit * trace) ** a["exponent"] - 1) / a["exponent"])
    return None


def _log(a: dict[str, Any], unit: Array) -> Array:
    if a["method"] == "exact":
        return np.log(np.maximum(unit, 1e-6 if a["floor"] is None else a["floor"]))
    return _interpolated(np.log, a["method"], 1e-3 if a["floor"] is None else a["floor"], unit)


def _brownian(t: float, moment: Spectrum) -> Array:
    columns = moment.rows.T
    squares = ((columns[:, None] - columns[None]) ** 2).sum(-1)
    d = np.sqrt(math.exp(t) * (squares + 1e-5 * (columns**2).sum(1).mean()))
    return np.asarray(d - d.mean(0) - d.mean(1)[:, None] + d.mean())


def _inverse(matrix: Array) -> Array:
    trace = max(float(np.trace(matrix)), 1e-7)
    values, vectors = np.linalg.eigh(matrix / trace)
    z = newton_schulz(values, 7)[1]
    return np.asarray((vectors * z**2) @ vectors.T / trace)


def _sparse_inverse(a: dict[str, Any], unit: Array) -> Array:
    current = _inverse(unit)
    for step in range(a["steps"]):
        slope, rate = unit - _inverse(current), a["rate"] * (1 - step / max(a["steps"] - 1, 1))
        up = np.maximum(0, np.maximum(current, 0) - rate * (slope + a["sparsity"]))
        down = np.maximum(0, np.maximum(-current, 0) - rate * (a["sparsity"] - slope))
        current = 0.5 * (up - down + (up - down).T)
    return current


def _log_cholesky(floor: float, unit: Array, trace: float) -> Array:
    factor = np.linalg.cholesky(unit + floor * np.eye(len(unit))) * math.sqrt(trace)
    lower = np.tril(factor, -1)
    return np.asarray(lower + lower.T + 2 * np.diag(np.log(np.diag(factor))))


def apply(name: str, arguments: dict[str, Any], module: Any, moment: Spectrum, smallest: float) -> tuple[Array, float]:
    """Returns q(M), (C, C), and the size of the numbers that it was computed from, which bounds rounding errors.

    The trace of M = 0 counts as the smallest normal number of the dtype, so that it has a logarithm.
    """
    trace, unit = moment.trace or smallest, moment.unit
    values = on_eigenvalues(name, arguments, module, unit, trace)
    if values is not None:
        size = float(np.linalg.norm(values))
        if name in ("log", "tangent", "polynomial"):
            size += _largest_term(name, arguments, unit, trace)
        return np.asarray((moment.vectors * values) @ moment.vectors.T), size
    matrix = np.asarray((moment.vectors * unit) @ moment.vectors.T)
    if name == "brownian":
        result = _brownian(float(module.t.detach()), moment)
        size = math.sqrt(trace * math.exp(float(module.t.detach())))
    elif name == "sparse_inverse":
        result, size = _sparse_inverse(arguments, matrix), 0.0
    else:
        result = _log_cholesky(arguments["floor"], matrix, trace)
        size = abs(math.log(trace)) + math.sqrt(trace)  # of the factor; zeros of the matrix are zeros but for rounding
    return result, size + float(np.linalg.norm(result))


def _largest_term(name: str, a: dict[str, Any], unit: Array, trace: float) -> float:
    """The size of terms that may cancel in the result."""
    count = math.sqrt(len(unit))
    if name == "log":
        return count * (abs(math.log(trace)) + 14)
    if name == "tangent":
        return count / a["exponent"]
    scale = 1.0 if a["unit_trace"] else trace
    return count * float(sum(abs(c) * (scale * unit.max()) ** i for i, c in enumerate(a["coefficients"])))

"""The moments in NumPy, as the singular value decomposition of their rows: independent of what is tested."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Spectrum(NamedTuple):
    """A second moment M = trace · V diag(unit) Vᵀ of one sample.

    Attributes:
        rows: X with XᵀX = M before it was shrunk, (N, C).
        unit: eigenvalues of M / trace, (C,); zeros if M = 0.
        vectors: V, (C, C).
        trace: of M; 0 if M = 0.
    """

    rows: Array
    unit: Array
    vectors: Array
    trace: float


def weights_of(weights: Array | None, count: int) -> Array:
    """Returns a weight for each token; without weights, ones."""
    return np.ones(count) if weights is None else weights


def centred(tokens: Array, w: Array) -> Array:
    """Returns tokens (N, C) minus their weighted mean; zeros where the weight is 0."""
    shown = tokens[w > 0]
    shifted = shown - shown[0]  # before the mean, which is then exact for constant features
    result = np.zeros_like(tokens)
    result[w > 0] = shifted - (w[w > 0] / w.sum()) @ shifted
    return result


def rows_of(name: str, tokens: Array, w: Array, constant: float = 1.0) -> Array:
    """Returns X (N, C) with XᵀX = the moment of this name."""
    part = np.sqrt(w / w.sum())[:, None]
    tokens = np.where(w[:, None] > 0, tokens, 0.0)
    if name == "bilinear":
        return tokens * part * w.sum() / np.sqrt((w**2).sum())
    if name == "gaussian":
        return np.concatenate([tokens, np.full((len(tokens), 1), constant)], 1) * part
    return centred(tokens, w) * part


def intensity(shrinkage: float | str, unit: Array, rows: Array, w: Array) -> float:
    """Returns ρ of the shrinkage, for eigenvalues of sum 1: the formulas of OAS and of Ledoit and Wolf."""
    if not isinstance(shrinkage, str):
        return float(shrinkage)
    p, n = len(unit), w.sum() ** 2 / (w**2).sum()
    distance = ((unit - 1 / p) ** 2).sum()
    if shrinkage == "oas":
        return 1.0 if distance == 0 else float(min(1, (distance + 1 / p + 1) / ((n + 1) * distance)))
    shown = w > 0
    squares = (rows[shown] ** 2).sum(1) / w[shown] * w.sum()  # ‖x − mean‖²
    fourth = (w[shown] * squares**2).sum() / w.sum() / max((rows**2).sum() ** 2, 1e-300)
    return 0.0 if distance == 0 else float(np.clip((fourth - (unit**2).sum()) / (n * distance), 0, 1))


def spectrum(name: str, arguments: dict[str, Any], tokens: Array, weights: Array | None) -> Spectrum:
    """Returns the moment of one sample, tokens (N, C)."""
    w = weights_of(weights, len(tokens))
    rows = rows_of(name, tokens, w, arguments.get("constant", 1.0))
    size = max(float(np.abs(rows).max()), 1e-300)
    _, singular, right = np.linalg.svd(rows / size, full_matrices=True)
    unit = np.zeros(rows.shape[1])
    unit[: len(singular)] = singular**2
    total = float(unit.sum())
    unit = unit / (total or 1.0)
    shrinkage = arguments.get("shrinkage")
    if shrinkage is not None:
        rho = intensity(shrinkage, unit, rows / size, w)
        unit = (1 - rho) * unit + rho / len(unit)
    return Spectrum(rows, unit, right.T, total * size**2)

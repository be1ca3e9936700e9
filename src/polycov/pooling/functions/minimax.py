"""Odd polynomials that are as close to 1 as possible on an interval, one after the other (Remez)."""

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.pooling.functions.composition import DEGREES, Factor

MOST_EXCHANGES = 100
NEGLIGIBLE = 1e-12  # where the error is smaller, the best polynomial is that of Taylor, to rounding


@cache
def minimax_factor(degree: int, low: float, high: float) -> tuple[Factor, float]:
    """Returns the t of a degree whose largest error ``|1 − s t(s²)|`` on low ≤ s ≤ high is smallest, and that error.

    s t(s²) is an odd polynomial with q = degree + 1 coefficients. By Chebyshev's theorem it is the best one if its
    error takes its largest absolute value, with alternating signs, at q + 1 points. Remez's exchange finds them: solve
    for the polynomial whose errors at q + 1 points are ±e, move the points to the extrema of its error, which are the
    ends of the interval and the roots of the derivative, and repeat.

    Args:
        degree: of t; the polynomial has degree 2 · degree + 1.
        low: lower end of the interval, > 0.
        high: upper end.

    Example:
        >>> [round(c, 4) for c in minimax_factor(1, 0.5, 1.0)[0]], round(minimax_factor(1, 0.5, 1.0)[1], 4)
        ([2.1328, -1.2187], 0.086)
    """
    if (1 - low / high) ** (degree + 1) < NEGLIGIBLE:
        return _taylor(degree, (low + high) / 2), 0.0
    powers = 2 * torch.arange(degree + 1, dtype=torch.float64, device="cpu") + 1
    order = torch.arange(degree + 2, dtype=torch.float64, device="cpu")
    signs = (1 - 2 * (order % 2)).unsqueeze(1)
    points = low * (high / low) ** (0.5 - 0.5 * torch.cos(math.pi * order / (degree + 1)))
    for _ in range(MOST_EXCHANGES):
        system = torch.cat([points.unsqueeze(1) ** powers, signs], 1)
        *coefficients, level = torch.linalg.solve(system, torch.ones_like(points)).tolist()
        points = torch.cat([points[:1], _extrema(powers * system.new_tensor(coefficients)), points[-1:]])
        if len(points) != degree + 2:
            break
        error = float((points.unsqueeze(1) ** powers @ system.new_tensor(coefficients) - 1).abs().max())
        if error - abs(level) <= 1e-12:
            return tuple(coefficients), error
    raise PolycovError(f"Found no best polynomial of degree {2 * degree + 1} on [{low}, {high}]. Choose a larger low.")


def _extrema(derivative: Tensor) -> Tensor:
    """The positive s, in ascending order, where Σ derivative[i] s^(2i) is 0: roots from a companion matrix."""
    size = len(derivative) - 1
    companion = torch.diag(derivative.new_ones(size - 1), -1) if size > 1 else derivative.new_zeros(1, 1)
    companion[:, -1] = -derivative[:-1] / derivative[-1]
    roots = torch.linalg.eigvals(companion)
    real = (roots.imag.abs() <= 1e-9 * roots.abs()) & (roots.real > 0)
    return roots.real[real].sort().values.sqrt()


def _taylor(degree: int, centre: float) -> Factor:
    """The Taylor polynomial of m^(−1/2) at m = centre²: Σ_i binom(2i, i) (1 − m/centre²)ⁱ / 4ⁱ / centre."""
    coefficients = [0.0] * (degree + 1)
    for i in range(degree + 1):
        weight = math.comb(2 * i, i) / 4**i
        for j in range(i + 1):
            coefficients[j] += weight * math.comb(i, j) * (-1) ** j
    return tuple(c / centre ** (2 * j + 1) for j, c in enumerate(coefficients))


@cache
def minimax_factors(degrees: tuple[int, ...], low: float) -> tuple[tuple[Factor, ...], float]:
    """Returns the factors of a composition that brings all s in [low, 1] as close to 1 as possible, and its error.

    The first polynomial maps [low, 1] to an interval [1 − e, 1 + e], the second is the best one for that interval, and
    so on. This greedy choice is also the best of all compositions of these degrees.

    Args:
        degrees: of the factors.
        low: lower end of the interval.

    Reference: Amsel, Persson, Musco, Gower, "The Polar Express: Optimal Matrix Sign Methods and Their Application to
    the Muon Algorithm", 2025.

    Example:
        >>> round(minimax_factors((2, 2), 0.1)[1], 4), round(minimax_factors((2, 2, 2), 0.1)[1], 6)
        (0.0627, 0.000154)
    """
    factors: list[Factor] = []
    error, high = 0.0, 1.0
    for degree in degrees:
        factor, error = minimax_factor(degree, low, high)
        factors.append(factor)
        low, high = 1 - error, 1 + error
    return tuple(factors), error


def factor_degrees(stage: str, degrees: Sequence[int]) -> tuple[int, ...]:
    """Returns the degrees of t for odd polynomials of the given degrees.

    Raises:
        PolycovError: if there are none, or one is not 3, 5 or 9.
    """
    allowed = {2 * degree + 1: degree for degree in DEGREES}
    if not degrees or any(isinstance(d, bool) or d not in allowed for d in degrees):
        raise PolycovError(f"Expected degrees 3, 5 or 9 in {stage}, such as {stage}(5, 5), got {tuple(degrees)}.")
    return tuple(allowed[d] for d in degrees)

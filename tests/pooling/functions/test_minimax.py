"""The best polynomials, against a linear programme on a dense grid."""

import numpy as np
import pytest
from scipy.optimize import linprog

from polycov.errors import PolycovError
from polycov.pooling.functions.minimax import factor_degrees, minimax_factor, minimax_factors

INTERVALS = ((0.5, 1.0), (0.1, 1.0), (0.02, 1.0), (0.003, 1.0), (0.7, 1.3))


def by_linear_programme(degree: int, low: float, high: float) -> float:
    """The smallest e with |1 − s t(s²)| ≤ e on a grid: a linear programme in the coefficients of t and e."""
    s = low * (high / low) ** np.linspace(0, 1, 4001)
    basis = s[:, None] ** (2 * np.arange(degree + 1) + 1)
    scale = np.abs(basis).max(0)
    columns = basis / scale
    ones = np.ones((len(s), 1))
    result = linprog(
        np.r_[np.zeros(degree + 1), 1.0],
        np.block([[columns, -ones], [-columns, -ones]]),
        np.r_[np.ones(len(s)), -np.ones(len(s))],
        bounds=[(None, None)] * (degree + 1) + [(0, None)],
    )
    assert result.status == 0
    return float(result.fun)


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_no_polynomial_is_better(degree: int, low: float, high: float) -> None:
    factor, error = minimax_factor(degree, low, high)
    s = low * (high / low) ** np.linspace(0, 1, 20001)
    achieved = np.abs(1 - s * np.polynomial.polynomial.polyval(s**2, factor)).max()
    np.testing.assert_allclose(error, achieved, atol=1e-9)
    np.testing.assert_allclose(error, by_linear_programme(degree, low, high), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("degree", "width"), [(1, 1e-5), (2, 1e-3), (4, 0.01), (1, 1e-7), (2, 1e-5), (4, 1e-3)])
def test_narrow_intervals_are_no_problem(degree: int, width: float) -> None:
    factor, error = minimax_factor(degree, 1 - width, 1 + width)  # by exchange, and by Taylor if even narrower
    s = np.linspace(1 - width, 1 + width, 11)
    np.testing.assert_allclose(s * np.polynomial.polynomial.polyval(s**2, factor), 1, atol=error + 1e-11)


def test_newton_schulz_is_the_limit_of_degree_three() -> None:
    assert minimax_factor(1, 1.0, 1.0)[0] == (1.5, -0.5)


@pytest.mark.parametrize("degrees", [(2,), (2, 2), (4, 1), (1, 2, 4), (4, 4, 4, 4)])
@pytest.mark.parametrize("low", [0.3, 0.1, 0.01])
def test_the_error_of_a_composition_is_its_largest(degrees: tuple[int, ...], low: float) -> None:
    factors, error = minimax_factors(degrees, low)
    s = low ** np.linspace(0, 1, 50001)
    for factor in factors:
        s = s * np.polynomial.polynomial.polyval(s**2, factor)
    np.testing.assert_allclose(np.abs(1 - s).max(), error, rtol=1e-4, atol=1e-9)


def test_the_first_error_does_not_depend_on_later_steps_and_falls_with_them() -> None:
    errors = [minimax_factors((2,) * steps, 0.05)[1] for steps in range(1, 5)]
    assert errors == sorted(errors, reverse=True)
    assert minimax_factors((2, 2), 0.05)[0][0] == minimax_factors((2, 4), 0.05)[0][0]


@pytest.mark.parametrize("degrees", [(), (4,), (5, 7), (True,), (5.5,)])
def test_other_degrees_are_an_error(degrees: tuple[int, ...]) -> None:
    with pytest.raises(PolycovError, match="Expected degrees 3, 5 or 9 in sqrt_minimax"):
        factor_degrees("sqrt_minimax", degrees)

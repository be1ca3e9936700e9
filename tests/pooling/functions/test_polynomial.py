import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polycov import PolycovError
from polycov import functional as F
from polycov.pooling.functions.polynomial import count_products
from samples import relative, spd, unit_trace


def unit() -> torch.Tensor:
    return unit_trace(spd(2, 5, 30))


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=14))
def test_polynomial_is_the_sum_of_powers(coefficients: list[float]) -> None:
    a = unit()
    expected = np.stack([sum(c * np.linalg.matrix_power(m, i) for i, c in enumerate(coefficients)) for m in a.numpy()])
    torch.testing.assert_close(F.polynomial(a, coefficients), torch.from_numpy(expected), rtol=1e-10, atol=1e-12)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=20), st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (-0.1, 1.5)]))
def test_chebyshev_agrees_with_numpy_on_the_eigenvalues(
    coefficients: list[float], interval: tuple[float, float]
) -> None:
    a = unit()
    values, vectors = np.linalg.eigh(a.numpy())
    low, high = interval
    mapped = np.polynomial.chebyshev.chebval((2 * values - high - low) / (high - low), coefficients)
    expected = torch.from_numpy((vectors * mapped[:, None]) @ vectors.swapaxes(1, 2))
    assert float((F.chebyshev(a, coefficients, interval) - expected).abs().max()) < 1e-9
    assert math.isclose(
        F.chebyshev_value(0.3, coefficients, interval),
        np.polynomial.chebyshev.chebval((0.6 - high - low) / (high - low), coefficients),
        rel_tol=1e-9,
        abs_tol=1e-9,
    )


@pytest.mark.parametrize("function", [math.exp, math.cos, lambda x: 1 / (1 + x)])
def test_the_fit_converges_to_a_smooth_function(function: Callable[[float], float]) -> None:
    grid = np.linspace(0, 1, 101)
    errors = []
    for degree in (2, 4, 8, 14):
        coefficients = F.chebyshev_fit(function, degree)
        errors.append(max(abs(F.chebyshev_value(x, coefficients) - function(x)) for x in grid))
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-10


def test_polynomial_log_and_power_converge_to_the_exact_ones() -> None:
    c = spd(2, 4, 200)
    for exact, fitted in (
        (F.matrix_log(c), [F.matrix_log(c, k, floor=1e-2) for k in (4, 16, 64)]),
        (F.matrix_power(c, 0.7), [F.matrix_power(c, 0.7, k) for k in (4, 16, 64)]),
    ):
        errors = [relative(f, exact) for f in fitted]
        assert errors[0] > errors[1] > errors[2]
        assert errors[2] < 1e-2


@pytest.mark.parametrize("degree", range(1, 40))
def test_the_number_of_products_is_as_declared(degree: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    matmul = torch.Tensor.__matmul__

    def counted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return matmul(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    F.polynomial(torch.eye(2).unsqueeze(0), [1.0] * (degree + 1))
    assert count == count_products(degree) <= 2 * math.sqrt(degree)
    count = 0
    F.chebyshev(torch.eye(2).unsqueeze(0), [1.0] * (degree + 1))
    assert count == count_products(degree)


def test_wrong_arguments_are_rejected() -> None:
    with pytest.raises(PolycovError, match="at least one coefficient"):
        F.polynomial(unit(), [])
    with pytest.raises(PolycovError, match="low < high"):
        F.chebyshev_fit(math.exp, 3, (1.0, 0.0))
    with pytest.raises(PolycovError, match="degree"):
        F.chebyshev_fit(math.exp, 0)

"""Compositions of polynomials against the same polynomials of eigenvalues, and against autograd."""

import numpy as np
import pytest
import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.pooling import symmetric
from polycov.pooling.functions.composition import compose, composed_products
from samples import spd, unit_trace

FACTORS = {
    "one of degree 1": [(1.7, -0.6)],
    "one of degree 2": [(3.1, -4.0, 2.2)],
    "one of degree 4": [(4.0, -9.0, 8.0, -3.0, 0.5)],
    "2, 2": [(3.1, -4.0, 2.2), (1.9, -1.2, 0.3)],
    "4, 1, 2": [(4.0, -9.0, 8.0, -3.0, 0.5), (1.5, -0.5), (1.9, -1.2, 0.3)],
    "2, nearly 1": [(1.7, -0.6, 1e-9)],
    "2, but 1": [(1.7, -0.6, 0.0)],
    "4, nearly 3": [(1.5, -0.5, 0.2, 0.1, 1e-12)],
    "4, but 3, twice": [(1.5, -0.5, 0.2, 0.1, 0.0), (0.9, 0.1, 0.0, 0.05, 0.0)],
    "1, 4, 4": [(1.7, -0.6), (2.2, -2.4, 1.7, -0.6, 0.1), (2.3, -2.5, 1.7, -0.6, 0.1)],
}
each = pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
either = pytest.mark.parametrize("inverse", [False, True])


def plain(matrix: Tensor, factors: list[tuple[float, ...]], inverse: bool) -> Tensor:
    """The definition, in powers and operations that torch differentiates by itself."""
    current = matrix
    result = torch.eye(matrix.shape[-1], dtype=matrix.dtype) if inverse else matrix
    for c in factors:
        factor = sum(a * torch.linalg.matrix_power(current, i) for i, a in enumerate(c))
        result, current = result @ factor, current @ factor @ factor
    return result


@each
@either
@pytest.mark.parametrize("size", [3, 8, 13])
def test_values_and_gradients_are_those_of_the_definition(
    factors: list[tuple[float, ...]], inverse: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symmetric, "BLOCK", 4)
    x = spd(2, size).requires_grad_()
    weight = torch.randn(2, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours, theirs = compose(unit_trace(x), factors, inverse=inverse), plain(unit_trace(x), factors, inverse)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad((y * (weight + weight.mT)).sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(gradients[0], (gradients[1] + gradients[1].mT) / 2)


@each
@either
def test_on_a_diagonal_it_is_the_polynomial_of_each_entry(factors: list[tuple[float, ...]], inverse: bool) -> None:
    values = np.linspace(0, 1, 7)
    m, result = values, np.ones(7) if inverse else values
    for c in factors:
        t = np.polynomial.polynomial.polyval(m, c)
        m, result = m * t * t, result * t
    ours = compose(torch.from_numpy(np.diag(values))[None], factors, inverse=inverse)[0]
    np.testing.assert_allclose(ours, np.diag(result), atol=1e-12)


@each
@either
def test_the_number_of_products_is_what_is_counted(
    factors: list[tuple[float, ...]], inverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polycov.pooling.functions import composition

    calls = []
    original = symmetric.product
    monkeypatch.setattr(composition, "product", lambda *a, **k: calls.append(1) or original(*a, **k))  # type: ignore[func-returns-value]
    compose(spd(1, 3), factors, inverse=inverse)
    saved = inverse and len(factors) == 1  # the factor itself is the result
    assert len(calls) == composed_products([len(c) - 1 for c in factors]) - saved


def test_a_factor_of_another_degree_is_an_error() -> None:
    with pytest.raises(PolycovError, match=r"degree 1, 2 or 4, got \[3\]"):
        compose(spd(1, 3), [(1.0, 2.0, 3.0, 4.0)])

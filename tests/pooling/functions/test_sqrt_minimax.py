"""The minimax root against scipy's root, and its promised error."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

import polycov
from polycov.errors import PolycovError
from polycov.pooling.functions import sqrt
from polycov.pooling.functions.base import apply_function
from polycov.pooling.functions.sqrt_minimax import NORMS, MinimaxSqrt
from samples import features, spd

each_norm = pytest.mark.parametrize("norm", NORMS)


def with_spectrum(values: Tensor) -> Tensor:
    """A matrix with the given eigenvalues, (1, C, C)."""
    size = len(values)
    basis = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    return ((basis * values) @ basis.mT)[None]


@each_norm
def test_it_converges_to_the_root(norm: str) -> None:
    matrix = spd(2, 6, 40)
    root = apply_function(MinimaxSqrt(3, 9, 9, 9, 9, low=0.003, norm=norm), matrix)
    for ours, c in zip(root, matrix, strict=True):
        np.testing.assert_allclose(ours, scipy.linalg.sqrtm(c.numpy()), rtol=1e-6, atol=1e-6)


@each_norm
@pytest.mark.parametrize("degrees", [(9,), (5, 5), (3, 5)])
def test_the_error_keeps_its_promise(degrees: tuple[int, ...], norm: str) -> None:
    values = torch.logspace(-3, 1, 30, dtype=torch.float64)
    bound = {"trace": values.sum(), "frobenius": values.norm(), "square": values.square().norm().sqrt()}[norm]
    function = MinimaxSqrt(*degrees, low=0.2, norm=norm)
    roots = torch.linalg.eigvalsh(apply_function(function, with_spectrum(values)))[0]
    # a polynomial may reorder eigenvalues, but not those well apart
    inside = values >= 0.04 * bound
    exact = values.sqrt()
    found = torch.stack([roots[(roots - e).abs().argmin()] for e in exact])
    assert ((found - exact).abs() <= (function.error + 1e-9) * exact)[inside].all()
    assert inside.any()


@each_norm
def test_values_do_not_depend_on_the_scale(norm: str) -> None:
    matrix = spd(2, 5)
    function = MinimaxSqrt(5, 5, norm=norm)
    torch.testing.assert_close(apply_function(function, 1e6 * matrix), 1e3 * apply_function(function, matrix))


def test_the_bounds_are_ordered() -> None:
    matrix = spd(1, 8)
    largest = torch.linalg.eigvalsh(matrix).amax()
    square = (matrix @ matrix).norm().sqrt()
    assert largest <= square <= matrix.norm() <= matrix.diagonal(dim1=1, dim2=2).sum()


def test_the_lyapunov_gradient_is_that_of_the_exact_root() -> None:
    matrix = spd(2, 5, 40).requires_grad_()
    close = MinimaxSqrt(3, 9, 9, 9, low=0.01, gradient="lyapunov")
    weight = features(2, 5, 5)
    gradients = [
        torch.autograd.grad((apply_function(function, matrix) * weight).sum(), matrix)[0]
        for function in (close, sqrt("exact"))
    ]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


def test_two_pools_with_the_same_spec_are_equal_on_both_sides() -> None:
    x = features(2, 30, 8)
    pools = [
        polycov.SecondOrderPool(8, "covariance | sqrt_minimax(5, 5) | triu", route=route).double()
        for route in ("covariance", "gram")
    ]
    torch.testing.assert_close(pools[0](x), pools[1](x))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sqrt_minimax", "Expected degrees 3, 5 or 9"),
        ("sqrt_minimax(7)", "Expected degrees 3, 5 or 9"),
        ("sqrt_minimax(5, low=0)", "Expected low of sqrt_minimax to be a number between 0.001 and 1"),
        ("sqrt_minimax(5, norm=spectral)", "Unknown norm 'spectral'"),
        ("sqrt_minimax(5, gradient=exact)", "Unknown gradient 'exact'"),
    ],
)
def test_wrong_arguments_are_errors(spec: str, message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        polycov.create_pool(f"covariance | {spec} | triu", 4)

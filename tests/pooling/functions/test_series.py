from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.interpolate
import scipy.linalg
import torch
from torch import Tensor

import polycov
from polycov import functional as F
from polycov.pooling.functions.base import MatrixFunction
from polycov.pooling.functions.series import PadeSqrt, TaylorSqrt
from samples import features, relative, spd, unit_trace


def taylor_of_sqrt(degree: int) -> list[float]:
    """The Taylor coefficients of √(1 − z) from the generalised binomial: binom(½, k) (−1)^k."""
    coefficients = []
    for k in range(degree + 1):
        value = 1.0
        for i in range(k):
            value *= (0.5 - i) / (i + 1)
        coefficients.append(value * (-1) ** k)
    return coefficients


def on_eigenvalues(matrix: Tensor, function: Callable[[Any], Any]) -> Tensor:
    """√‖A‖ f(I − A/‖A‖) of each matrix, by numpy's eigendecomposition."""
    results = []
    for a in matrix.numpy():
        norm = np.sqrt((a**2).sum())
        values, vectors = np.linalg.eigh(a)
        results.append(np.sqrt(norm) * (vectors * function(1 - values / norm)) @ vectors.T)
    return torch.from_numpy(np.stack(results))


@pytest.mark.parametrize("degree", [1, 4, 11])
def test_taylor_is_the_polynomial_of_the_paper(degree: int) -> None:
    series = np.polynomial.Polynomial(taylor_of_sqrt(degree))
    torch.testing.assert_close(F.taylor_sqrt(spd(3, 5), degree), on_eigenvalues(spd(3, 5), series))


@pytest.mark.parametrize("order", [1, 3, 5])
def test_pade_is_the_diagonal_approximant_that_scipy_computes(order: int) -> None:
    numerator, denominator = scipy.interpolate.pade(taylor_of_sqrt(2 * order), order)
    expected = on_eigenvalues(spd(3, 5), lambda z: numerator(z) / denominator(z))
    torch.testing.assert_close(F.pade_sqrt(spd(3, 5), order), expected, rtol=1e-7, atol=1e-9)


def test_both_converge_to_the_root_that_scipy_computes() -> None:
    matrix = spd(2, 5)
    exact = torch.from_numpy(np.stack([scipy.linalg.sqrtm(a) for a in matrix.numpy()]))
    assert relative(F.taylor_sqrt(matrix, 2000), exact) < 1e-10
    assert relative(F.pade_sqrt(matrix, 15), exact) < 1e-6
    assert relative(F.pade_sqrt(matrix, 5), exact) < 0.5 * relative(F.taylor_sqrt(matrix, 11), exact)


def test_pade_of_a_singular_matrix_is_finite_and_known() -> None:
    value = F.pade_sqrt(torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]), 5)
    torch.testing.assert_close(value, torch.tensor([[[1.0, 0.0], [0.0, 1 / 11]]]))


@pytest.mark.parametrize("function", [TaylorSqrt(11), PadeSqrt(5)])
def test_the_gradient_solves_the_lyapunov_equation_of_the_approximate_root(function: MatrixFunction) -> None:
    matrix, weight = unit_trace(spd(1, 4)).requires_grad_(), features(1, 4, 4, seed=7)
    root = function(matrix, torch.ones(1), "products")
    (grad,) = torch.autograd.grad((root * weight).sum(), matrix)
    right = 0.5 * (weight + weight.mT)[0].numpy()
    solution = scipy.linalg.solve_continuous_lyapunov(root.detach()[0].numpy(), right)
    torch.testing.assert_close(grad[0], torch.from_numpy(solution))


def test_the_pade_approximant_of_the_geometric_series_is_the_series_itself() -> None:
    # SVD-Padé replaces 1/(1 − x) in the gradient of an eigendecomposition by such an approximant.
    numerator, denominator = scipy.interpolate.pade([1.0] * 9, 1)
    x = np.linspace(-0.9, 0.999, 7)
    np.testing.assert_allclose(numerator(x) / denominator(x), 1 / (1 - x), rtol=1e-12)


def test_svd_pade_has_the_gradient_of_the_eigendecomposition() -> None:
    x = features(1, 12).requires_grad_()
    pool = polycov.create_pool("svd-pade", 4).double()
    y = pool(x)
    direction = torch.linspace(-1, 1, y.shape[-1], dtype=torch.float64)
    (grad,) = torch.autograd.grad((y[0] * direction).sum(), x)
    values, vectors = torch.linalg.eigh(torch.cov(x[0].T, correction=0))  # torch's own gradient, with 1/(λi − λj)
    root = (vectors * values.sqrt()) @ vectors.mT
    (expected,) = torch.autograd.grad((F.triu(root.unsqueeze(0))[0] * direction).sum(), x)
    torch.testing.assert_close(grad, expected, rtol=1e-8, atol=1e-9)

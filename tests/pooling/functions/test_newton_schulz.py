from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch

import polycov
from polycov import functional as F
from polycov.pooling.functions.newton_schulz import NewtonSchulzEigenvalues, count_products
from polycov.pooling.functions.spectral import spectral
from polycov.pooling.plan import Route
from samples import features, relative, spd, unit_trace

Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def as_published(a: Matrix, k: int) -> tuple[Matrix, Matrix]:
    """The iteration as published, with three products each."""
    eye = np.eye(len(a))
    y, z = a, eye
    for _ in range(k):
        t = 0.5 * (3 * eye - z @ y)
        y, z = y @ t, t @ z
    return y, z


@pytest.mark.parametrize("k", range(1, 8))
def test_newton_schulz_is_the_iteration_as_published(k: int) -> None:
    a = unit_trace(spd())
    expected = [as_published(matrix, k) for matrix in a.numpy()]
    root = torch.from_numpy(np.stack([y for y, _ in expected]))
    inverse = torch.from_numpy(np.stack([z for _, z in expected]))
    torch.testing.assert_close(F.newton_schulz(a, k), root, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(F.newton_schulz(a, k, inverse=True), inverse, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(a @ F.newton_schulz(a, k, inverse=True), F.newton_schulz(a, k), rtol=1e-11, atol=1e-11)


def test_many_iterations_converge_to_the_root_of_scipy() -> None:
    c = spd()
    expected = torch.from_numpy(np.stack([scipy.linalg.sqrtm(matrix) for matrix in c.numpy()]))
    assert relative(F.matrix_sqrt(c, 20), expected) < 1e-12


def test_newton_schulz_squares_back() -> None:
    c = spd()
    root = F.matrix_sqrt(c, 20)
    torch.testing.assert_close(root @ root, c)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("k", range(1, 8))
def test_newton_schulz_is_twice_differentiable(k: int, inverse: bool) -> None:
    x = spd(1, 3).requires_grad_()

    def run(x: torch.Tensor) -> torch.Tensor:
        return F.newton_schulz(0.1 * (x + x.mT), k, inverse=inverse)

    assert torch.autograd.gradcheck(run, x)
    assert torch.autograd.gradgradcheck(run, x)


@pytest.mark.parametrize("k", range(1, 10))
def test_the_number_of_products_is_as_declared(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counted(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(*args: Any, **kwargs: Any) -> torch.Tensor:
            nonlocal count
            count += 1
            return function(*args, **kwargs)

        return run

    for owner, name in ((torch, "bmm"), (torch, "baddbmm"), (torch.Tensor, "baddbmm_")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    F.newton_schulz(torch.eye(2).unsqueeze(0) / 2, k)
    assert count == count_products(k) <= max(3 * k - 3, 1)


@pytest.mark.parametrize("k", [11, 12, 13, 20, 40, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_iterations_of_a_singular_matrix_do_not_diverge(k: int, dtype: torch.dtype) -> None:
    x = features(2, 8, 16, dtype=dtype)
    exact = polycov.create_pool("mpn-cov", 16).double()(x.double())
    routes: tuple[Route, ...] = ("covariance", "gram")
    assert np.linalg.eigvalsh(np.cov(x[0].double().numpy().T, bias=True))[0] < 1e-10
    results = [polycov.create_pool("isqrt-cov", 16, iterations=k, route=route).to(dtype)(x) for route in routes]
    assert relative(results[0], results[1]) < (1e-5 if dtype == torch.float32 else 1e-10)
    if k >= 20:
        assert relative(results[0], exact) < 1e-5


def test_the_iteration_on_eigenvalues_agrees_with_that_on_matrices() -> None:
    a = unit_trace(spd())
    for k in (1, 2, 5, 8):
        torch.testing.assert_close(spectral(a, NewtonSchulzEigenvalues(k)), F.newton_schulz(a, k))
    x = a[:1, :3, :3].clone().requires_grad_()

    def run(x: torch.Tensor) -> torch.Tensor:
        return spectral(0.5 * (x + x.mT), NewtonSchulzEigenvalues(5))

    assert torch.autograd.gradcheck(run, x)
    assert torch.autograd.gradgradcheck(run, x)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(("locations", "channels"), [(400, 200), (100, 200)])
def test_both_algorithms_agree_in_float32(locations: int, channels: int, inverse: bool) -> None:
    rows = F.covariance(features(2, locations, channels, dtype=torch.float32).relu())
    a = unit_trace(rows.mT @ rows)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(a.shape, generator=generator)

    def on_eigenvalues(x: torch.Tensor) -> torch.Tensor:
        return spectral(x, NewtonSchulzEigenvalues(5, inverse=inverse))

    def with_products(x: torch.Tensor) -> torch.Tensor:
        return F.newton_schulz(x, 5, inverse=inverse)

    def value_and_gradient(
        run: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = a.to(dtype).requires_grad_()
        y = run(x)
        return y, torch.autograd.grad(y, x, direction.to(dtype))[0]

    expected, expected_grad = value_and_gradient(with_products, torch.float64)
    for run in (on_eigenvalues, with_products):
        value, grad = value_and_gradient(run, torch.float32)
        assert relative(value, expected) < 5e-6
        assert relative(grad, expected_grad) < 1e-5


@pytest.mark.parametrize("iterations", [1, 2, 5, 12, 14])
@pytest.mark.parametrize("inverse", [False, True])
def test_slopes_of_all_pairs_are_divided_differences(iterations: int, inverse: bool) -> None:
    x = torch.tensor([[0.3, 0.0, 1e-5, 0.02, 0.02, 0.0, 1.0], [1e-3, 0.5, 0.25, 0.125, 0.1, 0.02, 1e-4]])
    function = NewtonSchulzEigenvalues(iterations, inverse=inverse)
    found = function.slopes(x)
    assert torch.equal(found, found.mT)
    for sample, values in zip(found, x.double(), strict=True):
        roots = [float(as_published(np.array([[value]]), iterations)[inverse][0, 0]) for value in values.tolist()]
        for i, a in enumerate(values.tolist()):
            for j, b in enumerate(values.tolist()):
                if abs(a - b) > 0.01 * max(a, b):
                    assert float(sample[i, j]) == pytest.approx((roots[i] - roots[j]) / (a - b), rel=1e-5), (a, b)
    near = function.slopes(torch.tensor([[0.02, 0.02 * (1 + 1e-6)]]))[0]
    torch.testing.assert_close(near[0, 1], near[0, 0], rtol=1e-4, atol=0)

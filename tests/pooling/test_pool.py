import copy
from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
import torch

import polycov
from polycov.pooling.methods import needs_training
from polycov.pooling.pool import Pool, SecondOrderPool
from samples import features

Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def newton_schulz(c: Matrix, iterations: int) -> Matrix:
    """The iteration as published, in numpy."""
    eye = np.eye(len(c))
    y, z = c / np.trace(c), eye
    for _ in range(iterations):
        t = 0.5 * (3 * eye - z @ y)
        y, z = y @ t, t @ z
    return np.sqrt(np.trace(c)) * y


def gaussian(x: Matrix) -> Matrix:
    mean = x.mean(0)
    top = np.cov(x.T, bias=True) + np.outer(mean, mean)
    return np.block([[top, mean[:, None]], [mean[None], np.ones((1, 1))]])


def normalised(q: Matrix) -> Matrix:
    v = np.sign(q.ravel()) * np.sqrt(np.abs(q.ravel()))
    return v / np.linalg.norm(v)


def triangle(q: Matrix) -> Matrix:
    return np.array([q[i, j] * (1 if i == j else np.sqrt(2)) for i in range(len(q)) for j in range(i, len(q))])


REFERENCES = {
    "average": lambda x: x.mean(0),
    "max": lambda x: x.max(0),
    "bilinear": lambda x: normalised(x.T @ x),
    "improved-bilinear": lambda x: normalised(scipy.linalg.sqrtm(x.T @ x)),
    "mpn-cov": lambda x: triangle(scipy.linalg.sqrtm(np.cov(x.T, bias=True))),
    "g2denet": lambda x: triangle(scipy.linalg.sqrtm(gaussian(x))),
    "isqrt-cov": lambda x: triangle(newton_schulz(np.cov(x.T, bias=True), 5)),
    "covariance | log(exact, floor=1e-12) | triu": lambda x: triangle(scipy.linalg.logm(np.cov(x.T, bias=True))),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("locations", [6, 40])
def test_a_pool_computes_what_numpy_and_scipy_compute(name: str, locations: int) -> None:
    x = features(2, locations, 5)
    expected = np.stack([REFERENCES[name](sample) for sample in x.numpy()])
    np.testing.assert_allclose(polycov.create_pool(name, 5).double()(x).numpy(), expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(("locations", "route"), [(4, "gram"), (64, "covariance")])
def test_auto_takes_the_route_that_route_for_returns(
    locations: int, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = SecondOrderPool(16, "covariance | sqrt(5) | triu")
    sizes: list[tuple[str, int]] = []

    def record(side: str) -> Callable[..., torch.Tensor]:
        def function(matrix: torch.Tensor, *_: object) -> torch.Tensor:
            sizes.append((side, matrix.shape[-1]))
            return matrix

        return function

    monkeypatch.setattr(pool.function, "forward", record("covariance"))
    monkeypatch.setattr(pool.function, "quotient", record("gram"))
    pool(torch.rand(1, locations, 16))
    assert sizes == [(route, min(locations, 16))]
    assert pool.route_for(locations) == route


def test_a_given_route_is_the_route_for_any_shape() -> None:
    pool = SecondOrderPool(16, "covariance | sqrt(5) | triu", route="gram")
    assert [pool.route_for(locations) for locations in (4, 64)] == ["gram", "gram"]
    assert polycov.create_pool("average", 16).route_for(4) is None


@pytest.mark.parametrize("name", polycov.list_methods())
def test_properties_of_the_methods(name: str) -> None:
    pool = polycov.create_pool(name, 4)
    assert isinstance(pool, Pool)
    first_order = ("average", "max", "gem", "attentive-probe", "efficient-probe", "simpool", "class-token")
    assert pool.first_order == (name in (*first_order, "class-token-mean"))
    trained = ("attentive-probe", "efficient-probe", "moment-probing")
    assert pool.needs_training == (name in trained) == needs_training(name)
    fitted = name in ("ipccp-fit", "mean-cov", "mean-cov-fit", "auto-fit")
    assert pool.fittable == fitted
    assert pool.is_fitted == (not fitted)
    assert pool.needs_eigenvalues == (name in ("pade-sqrt", "power-euclidean", "log-cholesky") or "exact" in pool.spec)


def test_a_long_iteration_needs_eigenvalues() -> None:
    assert not polycov.create_pool("isqrt-cov", 4, iterations=12).needs_eigenvalues
    assert polycov.create_pool("isqrt-cov", 4, iterations=13).needs_eigenvalues


def test_a_fitted_pool_is_fitted_and_so_is_one_that_loads_its_state() -> None:
    pool, other = (polycov.create_pool("average | project(2) | l2", 4) for _ in range(2))
    assert not pool.is_fitted
    pool.fit([torch.rand(10, 5, 4)])
    assert pool.is_fitted
    other.load_state_dict(pool.state_dict())
    assert other.is_fitted
    assert not copy.deepcopy(polycov.create_pool("average | project(2)", 4)).to("meta").is_fitted


def test_the_check_for_finite_results_can_be_disabled() -> None:
    x = torch.full((1, 5, 4), torch.inf)
    assert not polycov.create_pool("isqrt-cov", 4, check_finite=False)(x).isfinite().all()


def test_nan_is_reported_where_an_eigendecomposition_would_fail_in_training() -> None:
    pool = SecondOrderPool(256, "covariance | sqrt(5) | triu")
    x = torch.rand(2, 300, 256)
    x[1, 0, 0] = torch.nan
    x.requires_grad_()
    assert pool.plan(x).algorithm == "eigenvalues"
    with pytest.raises(polycov.NonFiniteError, match=r"1 of 2 samples have NaN or Inf \(samples \[1\]\)"):
        pool(x)


@pytest.mark.parametrize("vector", ["tensor_sketch", "random_maclaurin"])
def test_only_learnable_sketches_have_parameters(vector: str) -> None:
    fixed = SecondOrderPool(4, f"covariance | sqrt(5) | {vector}(8)")
    learnable = SecondOrderPool(4, f"covariance | sqrt(5) | {vector}(8, learnable=True)")
    assert not list(fixed.parameters())
    assert len(list(learnable.parameters())) == 1
    x = features(2, 9, 4, dtype=torch.float32)
    torch.testing.assert_close(learnable(x), fixed(x))
    learnable(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learnable.parameters())


def test_a_pool_can_be_copied_and_trained_in_a_network() -> None:
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), polycov.create_pool("ipccp-cs", 8, dim=16), torch.nn.Linear(16, 2)
    )
    network = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(16, 3, 8, 8, generator=generator)
    x[8:, 1] = x[8:, 0]  # the classes differ only in a correlation
    y = torch.arange(16) // 8
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_a_projection_is_fitted_with_the_weights_of_a_batch() -> None:
    x, w = features(20, 7, dtype=torch.float32), torch.rand(20, 7)
    by_weights, by_mask, plain, labelled = (
        polycov.create_pool("covariance | sqrt(5) | triu | project(3)", 4).fit([batch])
        for batch in ((x, w), (x, w > 0.5), (x, None), (x, torch.rand(20, 5)))
    )
    first = polycov.create_pool("covariance | sqrt(5) | triu", 4)
    for pool, weights in ((by_weights, w), (by_mask, w > 0.5), (plain, None), (labelled, None)):
        torch.testing.assert_close(pool(x, weights).mean(0), torch.zeros(3), atol=1e-5, rtol=0)
        basis = torch.linalg.svd(first(x, weights) - first(x, weights).mean(0)).Vh[:3]
        rotation = pool.state_dict()["post.0.weight"] @ basis.mT
        torch.testing.assert_close(rotation @ rotation.mT, torch.eye(3), atol=1e-3, rtol=0)


def test_weights_that_need_a_gradient_are_pooled_on_the_side_that_is_linear_in_them() -> None:
    pool, x, w = polycov.SecondOrderPool(64, "covariance | sqrt(5) | triu"), torch.rand(2, 9, 64), torch.rand(2, 9)
    assert pool.plan(x, w).route == "gram"
    assert pool.plan(x, w.clone().requires_grad_()).route == "covariance"


def test_a_feature_close_to_the_limit_of_its_dtype_is_finite() -> None:
    pool = SecondOrderPool(4, "bilinear | identity | triu")
    x = 0.95e19 * torch.eye(4).unsqueeze(0)  # the trace leaves the range of float32, its parts do not
    assert pool(x).isfinite().all()
    assert pool(x).max() == pytest.approx(0.9025e38)

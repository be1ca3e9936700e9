from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy
import torch

import polycov
from polycov.errors import PolycovError
from polycov.pooling.methods import fitted_dim, is_first_order, method_options
from polycov.pooling.pool import SecondOrderPool
from samples import features, relative


def test_methods_have_the_specs_of_the_literature() -> None:
    table = {
        "average": "average",
        "max": "max",
        "gem": "gem(3)",
        "bilinear": "bilinear | identity | flatten | signed_sqrt | l2",
        "cbp-ts": "bilinear | identity | tensor_sketch(64) | signed_sqrt | l2",
        "cbp-rm": "bilinear | identity | random_maclaurin(64) | signed_sqrt | l2",
        "improved-bilinear": "bilinear | sqrt(exact) | flatten | signed_sqrt | l2",
        "mpn-cov": "covariance | sqrt(exact) | triu",
        "g2denet": "gaussian | sqrt(exact) | triu",
        "monet-ts": "gaussian | sqrt(exact) | tensor_sketch(64)",
        "monet-rm": "gaussian | sqrt(exact) | random_maclaurin(64)",
        "monet-2-ts": "covariance | sqrt(exact) | tensor_sketch(64)",
        "monet-2-rm": "covariance | sqrt(exact) | random_maclaurin(64)",
        "isqrt-cov": "covariance | sqrt(5) | triu",
        "ipccp-ts": "covariance | sqrt(5) | tensor_sketch(64)",
        "ipccp-rm": "covariance | sqrt(5) | random_maclaurin(64)",
        "ipccp-cs": "covariance | sqrt(5) | count_sketch(64)",
        "ipccp-rot": "covariance | sqrt(5) | rotated(64)",
        "ipccp-fit": "covariance | sqrt(5) | count_sketch(8192, least=64) | project(64)",
        "mean-cov": "[average, covariance | sqrt(5) | triu] | balance(1, 2)",
        "mean-cov-fit": "[average, covariance | sqrt(5) | count_sketch(8192, least=64)] | balance(1, 2) | "
        "project(64, fit=classes)",
        "auto-fit": "[average, covariance | sqrt_minimax(9) | count_sketch(32768, least=512)] | balance(fit=classes) | "
        "project(512, fit=classes, shrinkage=auto)",
        "taylor-sqrt": "covariance | sqrt_taylor(11) | triu",
        "pade-sqrt": "covariance | sqrt_pade(5) | triu",
        "svd-pade": "covariance | sqrt(exact) | triu",
        "dropcov": "dropcov | identity | triu",
        "deep-bdc": "bilinear | brownian(-5.3) | triu",
        "isice": "covariance | sparse_inverse(5) | triu",
        "log-euclidean": "covariance | log(exact) | triu",
        "power-euclidean": "covariance | tangent(0.5) | triu",
        "log-cholesky": "covariance | log_cholesky(1e-06) | triu",
        "moment-probing": "[average, self_cross(31, heads=3) | identity | flatten | l2]",
        "attentive-probe": "attentive_probe(8)",
        "efficient-probe": "efficient_probe(32)",
        "simpool": "simpool(2)",
        "class-token": "class_token",
        "class-token-mean": "[class_token, average]",
    }
    assert polycov.list_methods() == list(table)
    for name, spec in table.items():
        dim = 64 if "64" in spec else None
        assert polycov.create_pool(name, channels=8, dim=dim).spec == spec


@pytest.mark.parametrize("name", polycov.list_methods())
def test_every_method_names_its_paper(name: str) -> None:
    doc = polycov.get_method(name).__doc__ or ""
    assert "(polycov)" in doc or any(str(year) in doc for year in range(2012, 2026))


def test_a_method_and_its_spec_give_the_same_pool() -> None:
    a = polycov.create_pool("ipccp-ts", channels=256, dim=512, seed=0)
    b = polycov.SecondOrderPool(256, "covariance | sqrt(5) | tensor_sketch(512)", seed=0)
    x = features(1, 30, 256)
    assert repr(a) == repr(b)
    assert torch.equal(a(x), b(x))


def test_options_change_the_spec() -> None:
    assert "sqrt(3)" in polycov.create_pool("isqrt-cov", 8, iterations=3).spec
    assert polycov.create_pool("improved-bilinear", 8, iterations=9).spec.startswith("bilinear | sqrt(9, gradient=lyap")
    assert polycov.create_pool("ipccp-fit", 8, dim=4, width=16).out_features == 4
    assert polycov.create_pool("ipccp-ts", 8).out_features == 8192


untyped: Any = polycov  # its functions, called with arguments of the wrong type


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: polycov.create_pool("isqrt-cov", 8, dim=64), "'isqrt-cov' takes only iterations, got dim=64"),
        (lambda: polycov.create_pool("average", 8, dim=64), "'average' has no options, got dim=64"),
        (lambda: polycov.create_pool("covariance | sqrt(5) | triu", 8, dim=64), "triu' has no options"),
        (lambda: polycov.create_pool("ipccp_ts", 8), "Unknown method 'ipccp_ts'.*Did you mean 'ipccp-ts'"),
        (lambda: polycov.create_pool("ipccp-ts", 8, dim=0), "positive integer, got 0"),
        (lambda: polycov.create_pool("ipccp-ts", 8, dim=10**20), "positive integer"),
        (lambda: untyped.create_pool("ipccp-ts", 8, dim="64, learnable=True"), "dim of 'ipccp-ts' to be a number"),
        (lambda: untyped.create_pool("ipccp-ts", 8, seed=None), "seed to be a 64-bit integer, got None"),
        (lambda: untyped.create_pool("isqrt-cov", 8, seed="0"), "seed to be a 64-bit integer"),
        (lambda: untyped.create_pool(None, 8), "name of a method or a spec, got None"),
        (lambda: untyped.get_method(["a"]), "Unknown method"),
        (lambda: untyped.create_pool("average", 8, route="fast"), "Unknown route 'fast'"),
        (lambda: polycov.SecondOrderPool(8, "ipccp-ts"), "For a method such as 'isqrt-cov' use create_pool"),
        (lambda: polycov.create_pool("ipccp-ts", 0), "channels of a pool to be a positive integer, got 0"),
        (lambda: untyped.create_pool("ipccp-ts", 8, route="fast"), "Unknown route 'fast'. Known: auto, covariance"),
        (
            lambda: polycov.create_pool("isqrt-cov", 8, route="paper"),
            "'paper' does not exist for 'covariance . sqrt.5. . triu'",
        ),
        (lambda: polycov.SecondOrderPool(8, "average"), "first-order pooling: use create_pool"),
        (lambda: polycov.FirstOrderPool(8, "covariance | sqrt(5) | triu"), "second-order pooling: use create_pool"),
    ],
)
def test_wrong_arguments_are_rejected_with_a_clear_message(call: Callable[[], object], message: str) -> None:
    with pytest.raises(polycov.PolycovError, match=message):
        call()


def test_is_first_order_says_so_of_methods_and_specs() -> None:
    first = [name for name in polycov.list_methods() if is_first_order(name)]
    assert first == [
        *("average", "max", "gem", "attentive-probe", "efficient-probe", "simpool"),
        "class-token",
        "class-token-mean",
    ]
    assert is_first_order("average | l2")
    assert not is_first_order("ipccp-ts", dim=None, iterations=3)
    with pytest.raises(polycov.SpecError, match="takes only dim, iterations, got width=3"):
        is_first_order("ipccp-ts", width=3)


def test_fitted_dim_is_that_of_the_projection() -> None:
    assert fitted_dim("ipccp-fit", None) == 512
    assert fitted_dim("ipccp-fit", 64) == fitted_dim("mean-cov-fit", 64) == fitted_dim("auto-fit", 64) == 64
    assert fitted_dim("covariance | sqrt(5) | count_sketch(512) | project(256)", 64) == 256
    assert all(fitted_dim(name, 64) == 0 for name in polycov.list_methods() if not name.endswith("-fit"))


def test_specs_have_no_options_and_methods_those_of_their_function() -> None:
    assert method_options("ipccp-fit") == ["dim", "iterations", "width"]
    assert method_options("average | l2") == []


@pytest.mark.parametrize("sketch", ["ts", "rm"])
def test_monet_2_is_the_limit_of_ipccp(sketch: str) -> None:
    x = features(2, 40, 8)
    limit = polycov.create_pool(f"monet-2-{sketch}", 8, dim=64, seed=2).double()(x)
    distances = [
        relative(polycov.create_pool(f"ipccp-{sketch}", 8, dim=64, seed=2, iterations=k).double()(x), limit)
        for k in (1, 5, 9, 25)
    ]
    assert distances[0] > distances[1] > distances[2] > 1e-12
    assert distances[3] < 1e-12


@pytest.mark.parametrize("sketch", ["tensor_sketch", "random_maclaurin"])
def test_monet_is_compact_bilinear_pooling_of_rows_whose_products_are_the_root(sketch: str) -> None:
    x = features(1, 40, 8)
    rows = np.concatenate([x[0].numpy(), np.ones((40, 1))], 1)
    values, vectors = np.linalg.eigh(rows.T @ rows / 40)  # M, the Gaussian embedding
    y = np.diag(values.clip(0) ** 0.25) @ vectors.T
    root = scipy.linalg.sqrtm(rows.T @ rows / 40).real
    np.testing.assert_allclose(y.T @ y, root, atol=1e-12)  # M^½ = YᵗY
    bilinear = SecondOrderPool(9, f"bilinear | identity | {sketch}(64)", route="paper", seed=2).double()
    monet = SecondOrderPool(8, f"gaussian | sqrt(exact) | {sketch}(64)", seed=2).double()
    torch.testing.assert_close(monet(x), bilinear(torch.from_numpy(y)[None]), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", ["ipccp-fit", "mean-cov-fit", "auto-fit"])
@pytest.mark.parametrize("dim", [0, -3, 2.5])
def test_a_wrong_dimension_has_the_name_that_it_was_given(name: str, dim: Any) -> None:
    with pytest.raises(PolycovError, match="Expected dim of project to be a positive integer"):
        polycov.create_pool(name, 16, dim=dim)

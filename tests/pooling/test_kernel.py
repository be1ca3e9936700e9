import numpy as np
import pytest
import torch

import polycov
from polycov import create_pool
from polycov.pooling.kernel import kernel_error, uncompressed
from samples import CHANNELS, features


def test_kernel_error_is_the_relative_frobenius_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    compact, full = torch.randn(5, 3, generator=generator), torch.randn(5, 7, generator=generator)
    a, b = compact.double().numpy(), full.double().numpy()
    expected = np.linalg.norm(a @ a.T - b @ b.T) / np.linalg.norm(b @ b.T)
    assert kernel_error(compact, full) == pytest.approx(expected, rel=1e-12)


def test_kernel_error_is_zero_if_inner_products_are_preserved() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
    assert kernel_error(x, x) == 0
    assert kernel_error(x @ rotation, x) < 1e-14


def test_kernel_error_accepts_features_with_a_gradient() -> None:
    x = torch.rand(5, 3, requires_grad=True)
    assert kernel_error(2 * x, x) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("monet-ts", "g2denet"),
        ("monet-rm", "g2denet"),
        ("monet-2-ts", "mpn-cov"),
        ("monet-2-rm", "mpn-cov"),
        ("ipccp-ts", "isqrt-cov"),
        ("ipccp-rm", "isqrt-cov"),
        ("ipccp-cs", "isqrt-cov"),
        ("ipccp-rot", "isqrt-cov"),
    ],
)
def test_a_compact_method_approximates_an_uncompressed_one(method: str, expected: str) -> None:
    assert uncompressed(method) == polycov.create_pool(expected, 4).spec


def test_all_other_methods_approximate_nothing() -> None:
    rest = [name for name in polycov.list_methods() if not name.startswith(("monet", "ipccp"))]
    assert len(rest) == 28
    assert all(uncompressed(name) is None for name in [*rest, "ipccp-fit"])


def test_specs_approximate_their_triangle() -> None:
    assert uncompressed("bilinear | identity | tensor_sketch(8)") == "bilinear | identity | triu"
    assert uncompressed("covariance | log | count_sketch(8)") == "covariance | log(exact) | triu"
    assert uncompressed("covariance | sqrt(5) | triu") is None
    assert uncompressed("covariance | sqrt(5) | tensor_sketch(8) | l2") is None


def test_features_side_by_side_approximate_those_of_their_parts() -> None:
    sketch, full = "covariance | sqrt(5) | count_sketch(8)", "covariance | sqrt(5) | triu"
    assert uncompressed(f"[average | l2, {sketch}]") == f"[average | l2, {full}]"
    assert uncompressed(f"[max, [average, {sketch}]]") == f"[max, [average, {full}]]"
    for spec in (f"[average, {full}]", f"[average, {sketch} | l2]", f"[average, {sketch}] | balance", "[average, max]"):
        assert uncompressed(spec) is None


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(polycov.SpecError, match="Unknown method 'ipcp-ts'"):
        uncompressed("ipcp-ts")


@pytest.mark.parametrize("name", [name for name in polycov.list_methods() if uncompressed(name)])
def test_a_wide_sketch_has_a_small_kernel_error(name: str) -> None:
    x = torch.rand(6, 20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    full = polycov.create_pool(uncompressed(name) or "", 4).double()(x)
    narrow, wide = (polycov.create_pool(name, 4, dim=dim, seed=1).double()(x) for dim in (3, 20000))
    assert kernel_error(wide, full) < 0.05 < kernel_error(narrow, full)


def test_the_kernel_of_weighted_features_is_estimated_too() -> None:
    x, w = features(6, 9), torch.rand(6, 9, dtype=torch.float64)
    full = create_pool("covariance | sqrt(5) | triu", CHANNELS)(x, w)
    exact = create_pool("covariance | sqrt(5) | count_sketch(10)", CHANNELS)(x, w)
    assert kernel_error(exact, full) < 1e-12
    assert kernel_error(create_pool("covariance | sqrt(5) | count_sketch(10)", CHANNELS)(x), full) > 1e-3

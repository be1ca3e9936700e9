from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch

import polycov
from polycov import create_pool
from polycov import functional as F
from polycov.pooling.moments import scaled_covariance
from polycov.pooling.registry import Stage
from samples import features


def second_moment(rows: torch.Tensor) -> torch.Tensor:
    return rows.mT @ rows


def test_bilinear_is_the_sum_of_outer_products() -> None:
    x = features(2, 7, 3)
    expected = np.stack([sum(np.outer(t, t) for t in sample) for sample in x.numpy()])
    torch.testing.assert_close(second_moment(F.bilinear(x)), torch.from_numpy(expected))


def test_covariance_agrees_with_numpy() -> None:
    x = features(2, 7, 3)
    expected = np.stack([np.cov(sample.T, bias=True) for sample in x.numpy()])
    torch.testing.assert_close(second_moment(F.covariance(x)), torch.from_numpy(expected))


def test_gaussian_is_the_embedding_of_mean_and_covariance() -> None:
    x = features(1, 7, 3)[0].numpy()
    mean, cov = x.mean(0), np.cov(x.T, bias=True)
    expected = np.block([[cov + np.outer(mean, mean), mean[:, None]], [mean[None], np.ones((1, 1))]])
    rows = F.gaussian(torch.from_numpy(x).unsqueeze(0))
    torch.testing.assert_close(second_moment(rows)[0], torch.from_numpy(expected))


@pytest.mark.parametrize("stage", polycov.list_stages("moment"), ids=lambda stage: stage.name)
@pytest.mark.parametrize(
    "scales", [(1e-30, 1e-10, 1.0, 1e30), (1e-30,), (1e-6,), (0.02, 0.9), (1.0, 8.0), (1e7,), (1e30,)]
)
def test_rows_stay_close_to_one_at_any_scale(stage: Stage, scales: tuple[float, ...]) -> None:
    x = features(len(scales), 7, 3, dtype=torch.float32) * torch.tensor(scales)[:, None, None]
    module = stage.build(channels=3).eval()
    rows, scale = module(x)
    assert (rows.abs().amax((1, 2)) < 32).all()
    assert (rows.abs().amax((1, 2)) > 0.05).all()
    function = getattr(F, "covariance" if stage.name == "dropcov" else stage.name)  # no channel is dropped
    torch.testing.assert_close(rows * scale[:, None, None], function(x))


@pytest.mark.parametrize("exponent", [-60, -29, 0, 25, 32, 60])
def test_whether_rows_need_scaling_changes_no_digit(exponent: int) -> None:
    x, factor = features(4, 7, 3, dtype=torch.float32), 2.0**exponent
    (rows, scale), (others, other_scale) = scaled_covariance(x), scaled_covariance(x * factor)
    assert torch.equal(others * other_scale[:, None, None], rows * scale[:, None, None] * factor)
    pool = polycov.create_pool("ipccp-ts", 3, dim=8)
    assert torch.equal(pool(x * factor), pool(x) * factor)


@pytest.mark.parametrize("spec", ["covariance(shrinkage=ledoit_wolf) | sqrt(5) | triu", "isqrt-cov"])
@pytest.mark.parametrize("factor", [2.0**-20, 2.0**23, 2.0**60])
def test_a_feature_of_one_sample_follows_its_scale(spec: str, factor: float) -> None:
    x = torch.randn(1, 784, 64, generator=torch.Generator().manual_seed(0))
    pool = polycov.create_pool(spec, 64)
    torch.testing.assert_close(pool(x * factor) / factor, pool(x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_one_token_far_below_very_many_others(scale: float) -> None:
    x = torch.full((1, 2**20, 1), scale / 3)
    x[0, 0] = 0
    expected = scale / 3 * np.sqrt((2**20 - 1) / 2**40)  # the root of p (1 − p) x² with p = 2⁻²⁰
    assert float(polycov.create_pool("mpn-cov", 1)(x)) == pytest.approx(expected, rel=1e-3)


def test_second_moment_is_twice_differentiable() -> None:
    x = features(2, 3, 2).requires_grad_()
    torch.testing.assert_close(F.second_moment(x), second_moment(x))
    assert torch.autograd.gradcheck(F.second_moment, x)
    assert torch.autograd.gradgradcheck(F.second_moment, x)


@pytest.mark.parametrize("constant", [0.01, 3.0, 100.0])
def test_the_constant_of_the_gaussian_weighs_the_mean(constant: float) -> None:
    x = np.random.default_rng(0).normal(1, 2, (20, 3))
    mean, sigma = x.mean(0), np.cov(x.T, bias=True)
    block = np.block([[sigma + np.outer(mean, mean), constant * mean[:, None]], [constant * mean, constant**2]])
    rows = F.gaussian(torch.from_numpy(x).unsqueeze(0), constant=constant)
    np.testing.assert_allclose((rows.mT @ rows)[0], block, rtol=1e-12)
    root = create_pool(f"gaussian(constant={constant}) | sqrt(exact) | flatten", 3)(torch.from_numpy(x).unsqueeze(0))
    np.testing.assert_allclose(root[0].reshape(4, 4), scipy.linalg.sqrtm(block), rtol=1e-6, atol=1e-8)


def test_a_large_constant_leaves_the_root_of_the_covariance() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(1, 2, (1, 20, 3)))
    root = create_pool("gaussian(constant=100000) | sqrt(exact) | flatten", 3)(x)[0].reshape(4, 4)
    np.testing.assert_allclose(root[:3, :3], scipy.linalg.sqrtm(np.cov(x[0].numpy().T, bias=True)), rtol=1e-3)


@pytest.mark.parametrize("function", [F.bilinear, F.covariance, F.gaussian])
def test_a_mask_hides_tokens(function: Callable[..., torch.Tensor]) -> None:
    x = features(2, 7, 3)
    mask = torch.tensor([[True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
    x[~mask] = torch.nan
    moments = second_moment(function(x, mask))
    torch.testing.assert_close(moments[:1], second_moment(function(x[:1, :4])))
    torch.testing.assert_close(moments[1:], second_moment(function(x[1:, 2:])))


def weighted(function: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> np.ndarray[Any, Any]:
    moments: np.ndarray[Any, Any] = second_moment(function(x, w)).numpy()
    return moments


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weighted_moments_agree_with_numpy_and_a_loop(dtype: torch.dtype) -> None:
    x, w = features(2, 7, 3), torch.rand(2, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
    w[1, 3] = 0
    cov = np.stack([np.cov(t.T, aweights=a, ddof=0) for t, a in zip(x.numpy(), w.numpy(), strict=True)])
    mean = np.stack([np.average(t, 0, a) for t, a in zip(x.numpy(), w.numpy(), strict=True)])
    sums = np.zeros((2, 3, 3))
    for b, n in np.ndindex(2, 7):
        sums[b] += float(w[b, n]) * np.outer(x[b, n].numpy(), x[b, n].numpy())
    effective = w.sum(1).numpy() / w.square().sum(1).numpy()
    bound = 1e-12 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(weighted(F.covariance, x.to(dtype), w), cov, rtol=bound, atol=bound)
    np.testing.assert_allclose(
        weighted(F.bilinear, x.to(dtype), w), sums * effective[:, None, None], rtol=bound, atol=bound
    )
    embedded = weighted(F.gaussian, x.to(dtype), w)
    np.testing.assert_allclose(embedded[:, :3, :3], cov + mean[:, :, None] * mean[:, None], rtol=bound, atol=bound)
    np.testing.assert_allclose(embedded[:, 3, :3], mean, rtol=bound, atol=bound)
    np.testing.assert_allclose(embedded[:, 3, 3], 1, rtol=bound, atol=bound)


def test_a_large_mean_costs_no_digits_with_weights() -> None:
    x = features(2, 40, 3, dtype=torch.float32) * 1e-3 + 1000
    w = torch.rand(2, 40, generator=torch.Generator().manual_seed(0))
    expected = np.stack([np.cov(t.double().T, aweights=a, ddof=0) for t, a in zip(x, w, strict=True)])
    np.testing.assert_allclose(weighted(F.covariance, x, w), expected, rtol=1e-4, atol=1e-4 * abs(expected).max())


def test_the_second_moment_is_linear_in_the_weights() -> None:
    rows, w = features(2, 5, 3).requires_grad_(), torch.rand(2, 5, dtype=torch.float64)
    w[0, 1] = 0
    expected = np.einsum("bn,bni,bnj->bij", w, rows.detach(), rows.detach())
    np.testing.assert_allclose(F.second_moment(rows, w).detach(), expected, rtol=1e-12)
    assert torch.equal(F.second_moment(rows, w).mT, F.second_moment(rows, w))
    assert torch.autograd.gradcheck(F.second_moment, (rows, w.requires_grad_()))
    assert torch.autograd.gradgradcheck(F.second_moment, (rows, w))

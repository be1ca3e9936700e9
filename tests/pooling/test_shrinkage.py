"""Shrunk covariances agree with scikit-learn, sample by sample."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS, LedoitWolf, ShrunkCovariance
from torch import Tensor

import polycov
from polycov import functional as F
from polycov.pooling.shrinkage import effective_count
from samples import features

Array = np.ndarray[Any, Any]
ESTIMATORS: dict[float | str, Callable[[], Any]] = {
    "oas": OAS,
    "ledoit_wolf": LedoitWolf,
    0.1: lambda: ShrunkCovariance(shrinkage=0.1),
    0.0: lambda: ShrunkCovariance(shrinkage=0.0),
    1: lambda: ShrunkCovariance(shrinkage=1.0),
}
each_estimator = pytest.mark.parametrize("shrinkage", ESTIMATORS)


def reference(x: Tensor, shrinkage: float | str) -> Array:
    return np.stack([ESTIMATORS[shrinkage]().fit(sample).covariance_ for sample in x.double().numpy()])


@each_estimator
@pytest.mark.parametrize("locations", [2, 4, 12, 200])
def test_it_agrees_with_scikit_learn(shrinkage: float | str, locations: int) -> None:
    x = features(3, locations, 6)
    expected = reference(x, shrinkage)
    np.testing.assert_allclose(F.shrunk_covariance(x, shrinkage), expected, rtol=1e-9, atol=1e-12)
    pool = polycov.create_pool(f"covariance(shrinkage={shrinkage}) | identity | flatten", 6)
    np.testing.assert_allclose(pool(x).view(3, 6, 6), expected, rtol=1e-9, atol=1e-12)


@each_estimator
def test_it_agrees_with_scikit_learn_where_the_covariance_is_nearly_spherical(shrinkage: float | str) -> None:
    x = torch.randn(2, 4000, 5, generator=torch.Generator().manual_seed(0)) * 1e-3 + 10
    expected = reference(x, shrinkage)
    np.testing.assert_allclose(F.shrunk_covariance(x, shrinkage), expected, rtol=1e-4, atol=1e-4 * expected.max())
    estimator = ESTIMATORS[shrinkage]().fit(x[0].double().numpy())
    if isinstance(shrinkage, str):
        assert 0.1 < estimator.shrinkage_ < 1.0 or shrinkage == "oas"


@each_estimator
def test_a_mask_takes_the_tokens_that_exist(shrinkage: float | str) -> None:
    x = features(2, 9, 5)
    mask = torch.arange(9) < torch.tensor([[4], [9]])
    shrunk = F.shrunk_covariance(torch.where(mask.unsqueeze(-1), x, torch.nan), shrinkage, mask)
    np.testing.assert_allclose(shrunk[:1], reference(x[:1, :4], shrinkage), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(shrunk[1:], reference(x[1:], shrinkage), rtol=1e-9, atol=1e-12)


def weighted_by_definition(x: Array, w: Array, shrinkage: str) -> Array:
    """The formulas of both papers with averages weighted by w, and (Σ w)² / Σ w² for the number of tokens."""
    p, n = x.shape[1], w.sum() ** 2 / (w**2).sum()
    x = x - np.average(x, 0, w)
    cov = np.cov(x.T, aweights=w, ddof=0)
    mu, total = np.trace(cov) / p, (cov**2).sum()
    if shrinkage == "oas":
        rho = min(1.0, (total / p**2 + mu**2) / ((n + 1) * (total / p**2 - mu**2 / p)))
    else:
        variance = np.average([np.sum((np.outer(t, t) - cov) ** 2) for t in x], weights=w) / n
        rho = min(1.0, variance / np.sum((cov - mu * np.eye(p)) ** 2))
    result: Array = (1 - rho) * cov + rho * mu * np.eye(p)
    return result


@pytest.mark.parametrize("shrinkage", ["oas", "ledoit_wolf"])
def test_weights_count_in_averages_and_in_the_number_of_tokens(shrinkage: str) -> None:
    x, w = features(2, 30, 4), torch.rand(2, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = [weighted_by_definition(t.numpy(), a.numpy(), shrinkage) for t, a in zip(x, w, strict=True)]
    np.testing.assert_allclose(F.shrunk_covariance(x, shrinkage, w), np.stack(expected), rtol=1e-9, atol=1e-12)
    ones = weighted_by_definition(x[0].numpy(), np.ones(30), shrinkage)
    np.testing.assert_allclose(ones, reference(x[:1], shrinkage)[0], rtol=1e-9)


@each_estimator
def test_gradients_go_through_the_intensity(shrinkage: float | str) -> None:
    x, w = features(1, 12, 3).requires_grad_(), torch.rand(1, 12, dtype=torch.float64).add(0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: F.shrunk_covariance(x, shrinkage, w), (x, w))
    assert torch.autograd.gradgradcheck(lambda x, w: F.shrunk_covariance(x, shrinkage, w), (x, w))


def test_the_logarithm_of_few_locations_is_that_of_the_shrunk_covariance() -> None:
    x = features(2, 4, 6)
    values, vectors = np.linalg.eigh(reference(x, "oas"))
    expected = vectors * np.log(values)[:, None] @ vectors.swapaxes(1, 2)
    pool = polycov.create_pool("covariance(shrinkage=oas) | log(exact) | flatten", 6)
    np.testing.assert_allclose(pool(x).view(2, 6, 6), expected, rtol=1e-8, atol=1e-8)
    assert pool.route_for(4) == "covariance"


def test_the_spec_prints_the_shrinkage_and_wrong_ones_are_rejected() -> None:
    assert (
        str(polycov.parse_spec("covariance(shrinkage='oas')|sqrt|triu")) == "covariance(shrinkage=oas) | sqrt(5) | triu"
    )
    assert str(polycov.parse_spec("covariance(shrinkage=None)|sqrt|triu")) == "covariance | sqrt(5) | triu"
    for wrong in ("-0.1", "1.1", "True", "nan"):
        with pytest.raises(polycov.PolycovError, match=r"shrinkage"):
            polycov.create_pool(f"covariance(shrinkage={wrong}) | sqrt | triu", 4)
    with pytest.raises(polycov.PolycovError, match=r"Unknown shrinkage 'oass' of covariance.*Did you mean 'oas'"):
        polycov.create_pool("covariance(shrinkage=oass) | sqrt | triu", 4)


def test_the_effective_number_of_tokens() -> None:
    x, w = torch.zeros(1, 4, 2), torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    assert effective_count(x, None).tolist() == [4.0]
    assert effective_count(x, w > 0).tolist() == [3.0]
    assert effective_count(x, w).item() == pytest.approx(16 / 6)


def test_a_huge_token_of_weight_zero_does_not_matter() -> None:
    pool = polycov.create_pool("covariance(shrinkage=ledoit_wolf) | sqrt(5) | triu", 2)
    x = torch.rand(1, 4, 2, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([[1.0, 0.5, 1.0, 0.0]])
    expected = pool(x[:, :3], weights[:, :3])
    x[0, 3] = 1e26
    torch.testing.assert_close(pool(x, weights), expected)

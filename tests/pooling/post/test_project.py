from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

import polycov
from samples import features


def test_a_fitted_pool_is_the_pca_of_the_feature_before_it() -> None:
    pool = polycov.create_pool("covariance | sqrt(5) | triu | project(6)", 4).double()
    before = polycov.create_pool("covariance | sqrt(5) | triu", 4).double()
    train, test = features(50, 12, 4), features(5, 12, 4, seed=3)
    assert pool.fit(train.split(8)) is pool
    theirs = PCA(6, svd_solver="full").fit(before(train).numpy())
    expected = theirs.transform(before(test).numpy())
    ours = pool(test).detach().numpy()
    np.testing.assert_allclose(np.abs(ours), np.abs(expected), rtol=1e-6, atol=1e-9)


def test_batches_may_be_pairs_as_from_a_data_loader() -> None:
    train = features(50, 12, 4)
    a, b = (polycov.create_pool("average | project(2)", 4).double() for _ in range(2))
    a.fit(train.split(10))
    b.fit((x, torch.zeros(10)) for x in train.split(10))
    assert torch.equal(a(train), b(train))


def test_an_unfitted_pool_says_how_to_fit_it_and_a_state_dict_restores_the_fit() -> None:
    pool = polycov.create_pool("ipccp-fit", 4, dim=3, width=10)
    x = features(2, 12, 4, dtype=torch.float32)
    with pytest.raises(polycov.NotFittedError, match=r"project\(3\) is not fitted. Call pool.fit\(batches\)"):
        pool(x)
    unfitted = polycov.create_pool("ipccp-fit", 4, dim=3, width=10)
    unfitted.load_state_dict(pool.state_dict())
    with pytest.raises(polycov.NotFittedError):
        unfitted(x)
    pool.fit([features(20, 12, 4, dtype=torch.float32)])
    unfitted.load_state_dict(pool.state_dict())
    assert torch.equal(unfitted(x), pool(x))


@pytest.mark.parametrize("fit", ["pca", "whitened", "classes"])
def test_few_samples_are_fitted_as_far_as_they_reach(fit: str) -> None:
    x, labels = features(5, 12, 4), torch.tensor([0, 1, 0, 1, 0])
    pool = polycov.create_pool(f"covariance | sqrt(5) | triu | project(8, fit={fit})", 4, seed=3).double()
    pool.fit([(x, labels)])
    weight = pool.state_dict()["post.0.weight"]
    assert torch.linalg.matrix_rank(weight) == 8
    rest = weight[5:]
    torch.testing.assert_close(rest @ rest.mT, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(rest @ weight[:5].mT, torch.zeros(3, 5, dtype=torch.float64), atol=1e-8, rtol=0)
    feature = pool(x).detach()
    assert float(feature[:, 5:].std(0).max()) < 1e-8  # the samples do not vary there
    assert float(feature[:, :4].std(0).min()) > 1e-3
    smaller = polycov.create_pool(f"covariance | sqrt(5) | triu | project(4, fit={fit})", 4).double()
    torch.testing.assert_close(smaller.fit([(x, labels)])(x), feature[:, :4])


def test_whitening_gives_components_similar_variance() -> None:
    x = features(60, 12, 4)
    pool = polycov.create_pool("covariance | sqrt(5) | triu | project(6, fit=whitened)", 4).double().fit([x])
    before = polycov.create_pool("covariance | sqrt(5) | triu", 4).double()(x)
    variances = torch.linalg.svdvals(before - before.mean(0))[:6].square() / 60
    expected = variances / (variances + 0.1 * variances.mean())
    torch.testing.assert_close(pool(x).detach().var(0, correction=0), expected)


def test_an_unknown_fit_is_refused() -> None:
    with pytest.raises(polycov.PolycovError, match=r"Unknown fit 'clases' of project.*Did you mean 'classes'"):
        polycov.create_pool("average | project(2, fit=clases)", 4)


def test_no_samples_and_nothing_to_fit_are_rejected() -> None:
    pool = polycov.create_pool("average | project(3)", 4)
    with pytest.raises(polycov.PolycovError, match=r"Cannot fit project\(3\) to 0 samples"):
        pool.fit([])
    with pytest.raises(polycov.PolycovError, match="nothing to fit in 'average'"):
        polycov.create_pool("average", 4).fit([torch.rand(2, 5, 4)])


def test_functional_call_with_a_fitted_state_leaves_an_unfitted_pool_unfitted() -> None:
    fitted, unfitted = (polycov.create_pool("average | project(2)", 4) for _ in range(2))
    x = torch.rand(10, 5, 4)
    fitted.fit([x])
    assert torch.equal(torch.func.functional_call(unfitted, fitted.state_dict(), x), fitted(x))
    assert not unfitted.is_fitted
    with pytest.raises(polycov.NotFittedError):
        unfitted(x)


def test_a_fitted_projection_is_trainable() -> None:
    pool = polycov.create_pool("average | project(2)", 4)
    pool.fit([torch.rand(10, 5, 4)])
    pool(torch.rand(3, 5, 4)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in pool.parameters())


def test_fit_accepts_masks_empty_batches_and_half_precision() -> None:
    train, mask = features(50, 12, 4) + 5, torch.arange(12).expand(50, 12) < 8
    padded = torch.where(mask.unsqueeze(-1), train, torch.nan)
    a, b = (polycov.create_pool("average | project(2)", 4).double() for _ in range(2))
    a.fit([(padded, mask), (padded[:0], mask[:0])])
    b.fit([train[:, :8]])
    torch.testing.assert_close(a(train), b(train))
    assert a(padded, mask).mean(0).abs().max() < 1e-9
    half = polycov.create_pool("bilinear | identity | triu | project(2) | l2", 4)
    half.fit([(train[:0].half()), (train * 60).half()])  # C leaves the range of float16, the projection need not
    assert half((train[:5] * 60).half()).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_fit_takes_integers_of_two_dimensions_as_a_mask_and_of_one_as_labels(dtype: torch.dtype) -> None:
    train, mask = features(12, 12, 4), torch.arange(12).expand(12, 12) < 8
    pools = [polycov.create_pool("average | project(2)", 4).double() for _ in range(4)]
    batches: list[Any] = [(train, mask), (train, mask.to(dtype)), train, (train, torch.ones(12, dtype=dtype))]
    results = [pool.fit([batch])(train) for pool, batch in zip(pools, batches, strict=True)]
    assert torch.equal(results[1], results[0])
    assert torch.equal(results[3], results[2])
    assert not torch.allclose(results[2], results[0])
    with pytest.raises(polycov.PolycovError, match=r"weights of shape \(12, 12\).* of shape \(12, 3\)"):
        pools[0].fit([(train, mask[:, :3].to(dtype))])


@pytest.mark.parametrize("batches", [torch.rand(3, 5, 4), None, [{"image": 1}], [()]])
def test_wrong_batches_are_rejected(batches: Any) -> None:
    with pytest.raises(polycov.PolycovError, match="Expected batches"):
        polycov.create_pool("average | project(2)", 4).fit(batches)

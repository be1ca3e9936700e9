import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

import polycov
from polycov.pooling.post.project import StreamingPCA
from samples import features


def rows(samples: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.logspace(0, -2, columns, dtype=torch.float64)
    return torch.randn(samples, columns, generator=generator, dtype=torch.float64) * spectrum + 3


@pytest.mark.parametrize(
    ("samples", "columns", "k"), [(300, 12, 5), (12, 12, 11), (13, 12, 12), (9, 40, 8), (9, 40, 9)]
)
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_streaming_pca_is_scikit_learns(samples: int, columns: int, k: int, batch: int) -> None:
    x = rows(samples, columns)
    pca = StreamingPCA()
    for part in x.split(batch):
        pca.update(part)
    assert pca.samples == samples
    mean, basis = pca.components(k)
    theirs = PCA(k, svd_solver="full").fit(x.numpy())
    np.testing.assert_allclose(mean.numpy(), theirs.mean_, rtol=1e-12)
    np.testing.assert_allclose((basis @ basis.mT).numpy(), np.eye(k), atol=1e-10)
    some = theirs.explained_variance_ > 1e-12  # a direction without variance is free
    agreement = np.abs((basis.numpy() * theirs.components_).sum(1))
    np.testing.assert_allclose(agreement[some], 1, rtol=1e-9)


def test_fitted_pool_is_pca_of_the_feature_before_it() -> None:
    pool = polycov.create_pool("covariance | sqrt(5) | triu | project(6)", 4).double()
    before = polycov.create_pool("covariance | sqrt(5) | triu", 4).double()
    train, test = features(50, 12, 4), features(5, 12, 4, seed=3)
    assert pool.fit(train.split(8)) is pool
    theirs = PCA(6, svd_solver="full").fit(before(train).numpy())
    expected = theirs.transform(before(test).numpy())
    ours = pool(test).detach().numpy()
    np.testing.assert_allclose(np.abs(ours), np.abs(expected), rtol=1e-6, atol=1e-9)


def test_batches_may_be_pairs_as_a_data_loader_gives_them() -> None:
    train = features(50, 12, 4)
    a, b = (polycov.create_pool("average | project(2)", 4).double() for _ in range(2))
    a.fit(train.split(10))
    b.fit((x, torch.zeros(10)) for x in train.split(10))
    assert torch.equal(a(train), b(train))


def test_unfitted_says_how_to_fit_and_state_dict_carries_the_fit() -> None:
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


def test_too_little_to_fit_on() -> None:
    pool = polycov.create_pool("average | project(3)", 4)
    with pytest.raises(polycov.PolycovError, match=r"project\(3\) cannot be fitted on 2 training features"):
        pool.fit([torch.rand(2, 5, 4)])
    with pytest.raises(polycov.PolycovError, match="cannot be fitted on 0 training features"):
        pool.fit([])
    with pytest.raises(polycov.PolycovError, match="nothing to fit in 'average'"):
        polycov.create_pool("average", 4).fit([torch.rand(2, 5, 4)])


def test_projection_trains_from_its_fit() -> None:
    pool = polycov.create_pool("average | project(2)", 4)
    pool.fit([torch.rand(10, 5, 4)])
    pool(torch.rand(3, 5, 4)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in pool.parameters())


def test_fit_takes_masks_empty_batches_and_half_precision() -> None:
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


@pytest.mark.parametrize("batches", [torch.rand(3, 5, 4), None, [{"image": 1}], [()]])
def test_wrong_batches_are_refused(batches) -> None:
    with pytest.raises(polycov.PolycovError, match="Expected batches"):
        polycov.create_pool("average | project(2)", 4).fit(batches)

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

import polycov
from polycov.pooling.post.pca import principal_components
from polycov.pooling.post.statistics import Statistics


def rows(samples: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.logspace(0, -2, columns, dtype=torch.float64)
    return torch.randn(samples, columns, generator=generator, dtype=torch.float64) * spectrum + 3


@pytest.mark.parametrize(
    ("samples", "columns", "k"), [(300, 12, 5), (12, 12, 11), (13, 12, 12), (9, 40, 8), (9, 40, 9)]
)
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_streaming_pca_agrees_with_scikit_learn(samples: int, columns: int, k: int, batch: int) -> None:
    x = rows(samples, columns)
    pca = Statistics()
    for part in x.split(batch):
        pca.update(part)
    assert pca.samples == samples
    mean, basis = principal_components(pca, k)
    theirs = PCA(k, svd_solver="full").fit(x.numpy())
    np.testing.assert_allclose(mean.numpy(), theirs.mean_, rtol=1e-12)
    np.testing.assert_allclose((basis @ basis.mT).numpy(), np.eye(k), atol=1e-10)
    varying = theirs.explained_variance_ > 1e-12  # a direction without variance is arbitrary
    agreement = np.abs((basis.numpy() * theirs.components_).sum(1))
    np.testing.assert_allclose(agreement[varying], 1, rtol=1e-9)


def test_the_largest_entry_of_a_component_is_positive() -> None:
    pca = Statistics()
    pca.update(rows(50, 6))
    _, basis = principal_components(pca, 6)
    assert (basis.gather(1, basis.abs().argmax(1, keepdim=True)) > 0).all()


def test_memory_does_not_grow_with_the_number_of_rows() -> None:
    pca = Statistics()
    for batch in rows(500, 12).split(10):
        pca.update(batch)
        assert sum(len(stored) for stored, _ in pca.stored) <= 12


def test_rows_may_come_in_empty_batches() -> None:
    a, b = Statistics(), Statistics()
    x = rows(20, 6)
    a.update(x)
    for batch in (x[:0], x[:9], x[9:9], x[9:]):
        b.update(batch)
    torch.testing.assert_close(principal_components(a, 3), principal_components(b, 3))


@pytest.mark.parametrize(("samples", "columns", "k"), [(2, 4, 3), (20, 4, 5), (0, 0, 1)])
def test_too_few_samples_or_columns_are_rejected(samples: int, columns: int, k: int) -> None:
    pca, most = Statistics(), min(samples, columns)
    pca.update(torch.rand(samples, columns))
    message = f"Cannot fit {k} principal components to {samples} samples of {columns} dimensions: at most {most} are"
    with pytest.raises(polycov.PolycovError, match=message):
        principal_components(pca, k)

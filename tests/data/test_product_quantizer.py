import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.cluster.vq import vq
from scipy.linalg import svd

from polycov.data.product_quantizer import ProductQuantizer
from polycov.errors import MissingDependencyError, NotFittedError, PolycovError

FEATURES = torch.randn(400, 30, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 0.1, 30) + 5


def test_more_bytes_are_closer_and_the_error_is_that_of_the_nearest_centroids() -> None:
    errors = []
    for count in (2, 4, 8, 15):
        quantizer = ProductQuantizer(count).fit(FEATURES[:300])
        codes = quantizer.encode(FEATURES)
        assert codes.shape == (400, count)
        assert codes.dtype == torch.uint8
        errors.append(float((quantizer.decode(codes) - FEATURES).square().sum(1).mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.3 * errors[0]


def test_each_part_is_the_nearest_of_sixteen_centroids() -> None:
    """A naive quantiser with the same centroids gives the same features."""
    quantizer = ProductQuantizer(3).fit(FEATURES[:300])
    inner, mean, rotation = quantizer._parts()
    rows = ((FEATURES[300:] - mean) @ rotation).numpy()
    centroids = _centroids(inner)
    nearest = [centroids[p][vq(rows[:, 2 * p : 2 * p + 2], centroids[p])[0]] for p in range(6)]
    expected = torch.from_numpy(np.concatenate(nearest, axis=1)) @ rotation.mT + mean
    torch.testing.assert_close(quantizer.decode(quantizer.encode(FEATURES[300:])), expected, atol=1e-4, rtol=1e-4)


def _centroids(inner: Any) -> np.ndarray[Any, Any]:
    import faiss

    values: np.ndarray[Any, Any] = faiss.vector_to_array(inner.centroids)
    return values.reshape(6, 16, 2)


def test_few_bytes_keep_the_leading_components() -> None:
    """Of 30 dimensions, 3 bytes keep 12; the rest is the same for all features, as scipy's SVD says."""
    quantizer = ProductQuantizer(3).fit(FEATURES)
    _, _, axes = svd((FEATURES - FEATURES.mean(0)).double().numpy(), full_matrices=False)
    spread = (quantizer.decode(quantizer.encode(FEATURES)) - FEATURES.mean(0)).double().numpy() @ axes.T
    assert np.abs(spread[:, 12:]).max() < 1e-3
    assert np.abs(spread[:, :12]).std(0).min() > 0.01
    wide = torch.randn(60, 90, generator=torch.Generator().manual_seed(1))
    small = ProductQuantizer(4).fit(wide)  # fewer features than dimensions
    assert small.decode(small.encode(wide)).shape == (60, 90)


def test_dimensions_need_not_be_a_multiple_and_the_same_seed_is_the_same_code() -> None:
    one, same, other = (ProductQuantizer(4, seed).fit(FEATURES[:, :29]).encode(FEATURES[:, :29]) for seed in (0, 0, 1))
    assert one.shape == (400, 4)
    torch.testing.assert_close(one, same)
    assert not torch.equal(one, other)


def test_what_cannot_be_fitted_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolycovError, match="Expected 16 features of at least 8 dimensions for 4 bytes, got 9 of 30"):
        ProductQuantizer(4).fit(FEATURES[:9])
    with pytest.raises(PolycovError, match="at least 64 dimensions for 32 bytes, got 400 of 30"):
        ProductQuantizer(32).fit(FEATURES)
    with pytest.raises(NotFittedError):
        ProductQuantizer(4).encode(FEATURES)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingDependencyError, match=r"polycov\[search\]"):
        ProductQuantizer(4).fit(FEATURES)

import numpy as np
import pytest
import scipy.linalg
import torch

import polycov
from polycov import functional as F
from samples import features, spd


def covariances(x: torch.Tensor) -> list[np.ndarray]:
    return [np.cov(sample.numpy().T, bias=True) for sample in x]


@pytest.mark.parametrize("exponent", [0.3, 0.5, 1.0])
def test_the_power_euclidean_tangent_agrees_with_scipy(exponent: float) -> None:
    x = features(2, 30)
    y = polycov.create_pool(f"covariance | tangent({exponent}) | flatten", 4).double()(x)
    powers = [scipy.linalg.fractional_matrix_power(c, exponent) for c in covariances(x)]
    expected = np.stack([(p - np.eye(4)) / exponent for p in powers]).reshape(2, 16)
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-9)


def test_the_power_euclidean_tangent_tends_to_the_logarithm() -> None:
    x = features(2, 30)
    near = polycov.create_pool("covariance | tangent(1e-6) | triu", 4).double()(x)
    limit = polycov.create_pool("log-euclidean", 4).double()(x)
    torch.testing.assert_close(near, limit, rtol=1e-4, atol=1e-4)


def test_the_cholesky_logarithm_agrees_with_scipy() -> None:
    matrix = spd(3, 5)
    expected = []
    for c in matrix.numpy():
        factor = scipy.linalg.cholesky(c, lower=True)
        strict = np.tril(factor, -1)
        expected.append(strict + strict.T + 2 * np.diag(np.log(np.diag(factor))))
    np.testing.assert_allclose(F.log_cholesky(matrix), np.stack(expected), rtol=1e-10, atol=1e-12)


def test_the_pool_takes_the_cholesky_logarithm_of_the_raised_covariance() -> None:
    x = features(2, 30)
    y = polycov.create_pool("covariance | log_cholesky(0.01) | flatten", 4).double()(x)
    raised = torch.from_numpy(np.stack([c + 0.01 * np.trace(c) * np.eye(4) for c in covariances(x)]))
    torch.testing.assert_close(y, F.log_cholesky(raised).flatten(1))


def test_log_euclidean_agrees_with_scipy() -> None:
    x = features(2, 30)
    y = polycov.create_pool("covariance | log(exact) | flatten", 4).double()(x)
    np.testing.assert_allclose(
        y, np.stack([scipy.linalg.logm(c).ravel() for c in covariances(x)]), rtol=1e-8, atol=1e-8
    )

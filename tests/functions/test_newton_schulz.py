import numpy as np
import pytest
import scipy.linalg
import torch

from polycov import functional as F
from samples import features, relative


def spd(batch: int = 2, channels: int = 6) -> torch.Tensor:
    rows = F.covariance(features(batch, 40, channels))
    return rows.mT @ rows


def naive(a: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The iteration as printed: three products every time."""
    eye = np.eye(len(a))
    y, z = a, eye
    for _ in range(k):
        t = 0.5 * (3 * eye - z @ y)
        y, z = y @ t, t @ z
    return y, z


@pytest.mark.parametrize("k", range(1, 8))
def test_newton_schulz_is_the_iteration_as_printed(k: int) -> None:
    a = spd()
    a = a / a.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]
    expected = [naive(matrix, k) for matrix in a.numpy()]
    root = torch.from_numpy(np.stack([y for y, _ in expected]))
    inverse = torch.from_numpy(np.stack([z for _, z in expected]))
    torch.testing.assert_close(F.newton_schulz(a, k), root, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(F.newton_schulz(a, k, inverse=True), inverse, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(a @ F.newton_schulz(a, k, inverse=True), F.newton_schulz(a, k), rtol=1e-11, atol=1e-11)


def test_many_iterations_reach_scipys_root() -> None:
    c = spd()
    expected = torch.from_numpy(np.stack([scipy.linalg.sqrtm(matrix) for matrix in c.numpy()]))
    assert relative(F.matrix_sqrt(c, 20), expected) < 1e-12


def test_newton_schulz_squares_back() -> None:
    c = spd()
    root = F.matrix_sqrt(c, 20)
    torch.testing.assert_close(root @ root, c)

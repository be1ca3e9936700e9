import numpy as np
import pytest
import scipy.linalg
import torch

from polycov import functional as F
from polycov.functions.newton_schulz import products
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


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("k", range(1, 8))
def test_newton_schulz_differentiates_twice(k: int, inverse: bool) -> None:
    x = spd(1, 3).requires_grad_()

    def run(x: torch.Tensor) -> torch.Tensor:
        return F.newton_schulz(0.1 * (x + x.mT), k, inverse=inverse)

    assert torch.autograd.gradcheck(run, x)
    assert torch.autograd.gradgradcheck(run, x)


@pytest.mark.parametrize("k", range(1, 10))
def test_number_of_products_is_what_is_promised(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    matmul, baddbmm = torch.Tensor.__matmul__, torch.baddbmm

    def counted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return matmul(a, b)

    def counted_too(*args: torch.Tensor, **kwargs: float) -> torch.Tensor:
        nonlocal count
        count += 1
        return baddbmm(*args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    monkeypatch.setattr(torch, "baddbmm", counted_too)
    F.newton_schulz(torch.eye(2).unsqueeze(0) / 2, k)
    assert count == products(k) <= max(3 * k - 3, 1)

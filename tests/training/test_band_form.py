import numpy as np
import pytest
import scipy.linalg
import torch

from polycov.training.band_form import BandForm


def positive(n: int, rank: int, seed: int = 0) -> torch.Tensor:
    rows = torch.randn(n, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows @ rows.mT


@pytest.mark.parametrize("n", [1, 7, 32, 33, 100, 1100])  # below, at and above the band, and the wide band
def test_shifted_systems_are_solved_as_by_scipy(n: int) -> None:
    matrix, targets = positive(n, n + 3), torch.randn(n, 4, dtype=torch.float64)
    form, shifts = BandForm(matrix.clone()), torch.tensor([1e-3, 1.0, 100.0], dtype=torch.float64)
    found = form.rotate(form.solve(form.rotate(targets.mT).mT, shifts).mT, back=True).mT
    for shift, x in zip(shifts.tolist(), found, strict=True):
        expected = scipy.linalg.solve(matrix.numpy() + shift * np.eye(n), targets.numpy(), assume_a="pos")
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max())


def test_the_rotation_is_orthogonal_and_keeps_eigenvalues() -> None:
    form = BandForm(positive(90, 90).clone())
    rotation = form.rotate(torch.eye(90, dtype=torch.float64))
    torch.testing.assert_close(rotation @ rotation.mT, torch.eye(90, dtype=torch.float64))
    banded = (rotation.mT @ positive(90, 90) @ rotation).numpy()
    assert np.abs(np.tril(banded, -form.band - 1)).max() < 1e-10 * np.abs(banded).max()


@pytest.mark.parametrize("rank", [0, 1, 40])
def test_deficient_matrices_need_only_a_shift(rank: int) -> None:
    matrix, targets = positive(80, rank), torch.randn(80, 2, dtype=torch.float64)
    form = BandForm(matrix.clone())
    x = form.rotate(form.solve(form.rotate(targets.mT).mT, torch.tensor([0.1])).mT, back=True).mT[0]
    torch.testing.assert_close(matrix @ x + 0.1 * x, targets)

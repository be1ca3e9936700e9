import numpy as np
import pytest
import sklearn.covariance
import torch

import polycov
from polycov import functional as F
from polycov.pooling.functions.sparse_inverse import inverse
from samples import spd, unit_trace


def newton_schulz_inverse(a: np.ndarray, iterations: int = 7) -> np.ndarray:
    """The square of Z_k for A/tr A, over tr A, as printed."""
    trace, eye = np.trace(a), np.eye(len(a))
    y, z = a / trace, eye
    for _ in range(iterations):
        t = 0.5 * (3 * eye - z @ y)
        y, z = y @ t, t @ z
    return z @ z / trace


def paper(a: np.ndarray, steps: int, rate: float, sparsity: float) -> np.ndarray:
    s = newton_schulz_inverse(a)
    for i in range(steps):
        g = a - newton_schulz_inverse(s)
        eta = rate * (1 - i / (steps - 1))
        plus = np.maximum(0, np.maximum(0, s) - eta * (g + sparsity))
        minus = np.maximum(0, np.maximum(0, -s) - eta * (-g + sparsity))
        s = ((plus - minus) + (plus - minus).T) / 2
    return s


@pytest.mark.parametrize(("steps", "rate", "sparsity"), [(5, 1.0, 0.01), (3, 0.2, 0.5)])
def test_the_matrix_is_that_of_the_paper(steps: int, rate: float, sparsity: float) -> None:
    matrix = unit_trace(spd(3, 5))
    expected = np.stack([paper(a, steps, rate, sparsity) for a in matrix.numpy()])
    np.testing.assert_allclose(F.sparse_inverse(matrix, steps, rate, sparsity), expected, rtol=1e-9, atol=1e-9)


def test_the_inverse_converges() -> None:
    matrix = spd(2, 5)
    torch.testing.assert_close(inverse(matrix, 30), torch.linalg.inv(matrix))


def objective(a: torch.Tensor, s: torch.Tensor, sparsity: float) -> float:
    return float(-torch.logdet(s) + (a * s).sum() + sparsity * s.abs().sum())


def test_steps_lower_the_objective_of_the_graphical_lasso_and_make_zeros() -> None:
    matrix = unit_trace(spd(1, 5, 200))
    results = [F.sparse_inverse(matrix, steps, 5.0, 0.05)[0] for steps in (2, 20, 200)]
    best = sklearn.covariance.graphical_lasso((matrix[0] + 0.05 * torch.eye(5)).numpy(), 0.05)[1]
    matrices = (
        torch.linalg.inv(matrix[0]),
        *results,
        torch.from_numpy(best),
    )  # scikit-learn converges, steps only begin to
    values = [objective(matrix[0], s, 0.05) for s in matrices]
    assert values == sorted(values, reverse=True)
    assert (results[-1] == 0).any()


def test_the_feature_does_not_depend_on_the_size_of_the_features_and_is_not_random() -> None:
    x = torch.rand(2, 30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pool = polycov.create_pool("isice", 4).double()
    torch.testing.assert_close(pool(1000 * x), pool(x))
    assert torch.equal(pool(x), pool(x))

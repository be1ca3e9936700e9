from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch

from polycov import PolycovError
from polycov import functional as F
from polycov.pooling.functions.spectral import Log, Power, Quotient, ScalarFunction, spectral
from samples import features, relative, spd


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda c: F.matrix_sqrt(c, "exact"), scipy.linalg.sqrtm),
        (lambda c: F.matrix_power(c, 0.3), lambda m: scipy.linalg.fractional_matrix_power(m, 0.3)),
        (lambda c: F.matrix_power(c, 1.7), lambda m: scipy.linalg.fractional_matrix_power(m, 1.7)),
        (F.matrix_log, scipy.linalg.logm),
    ],
)
def test_exact_functions_agree_with_scipy(
    ours: Callable[[torch.Tensor], torch.Tensor], theirs: Callable[[object], object]
) -> None:
    c = spd()
    expected = torch.from_numpy(np.stack([np.asarray(theirs(matrix)) for matrix in c.numpy()]))
    assert relative(ours(c), expected) < 1e-12


def power(exponent: float) -> Callable[[mpmath.mpf], mpmath.mpf]:
    return lambda x: x ** mpmath.mpf(exponent)


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (Power(0.5), power(0.5)),
        (Power(0.3), power(0.3)),
        (Power(2.0), power(2.0)),
        (Log(1e-6), mpmath.log),
        (Quotient(Power(0.5)), power(-0.5)),
    ],
)
def test_divided_differences_agree_with_high_precision_arithmetic(
    function: ScalarFunction, exact: Callable[[mpmath.mpf], mpmath.mpf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpmath.mp, "dps", 60)
    points = [1e-4, 1e-4 + 1e-18, 1e-4 * (1 + 1e-12), 1.0001e-4, 0.02, 0.02 * (1 + 1e-7), 0.9]
    for a in points:
        for b in points:
            x, y = mpmath.mpf(a), mpmath.mpf(b)
            expected = mpmath.diff(exact, x) if a == b else (exact(x) - exact(y)) / (x - y)
            slope = function.slope(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
            assert abs(float(slope) / float(expected) - 1) < 1e-12, (a, b)


def test_eigenvalues_below_the_floor_are_set_to_zero() -> None:
    a = torch.diag(torch.tensor([0.7, 0.3, 1e-17, 0.0], dtype=torch.float64)).unsqueeze(0).requires_grad_()
    root = spectral(a, Power(0.5))
    (grad,) = torch.autograd.grad(root.sum(), a)
    assert root[0, 2, 2] == 0
    assert torch.isfinite(grad).all()
    assert (grad[0, 2:, 2:] == 0).all()  # inside the kernel
    torch.testing.assert_close(grad[0, 0, 2], torch.tensor(0.7**-0.5, dtype=torch.float64))  # between it and the rest


def test_the_logarithm_is_constant_below_its_floor() -> None:
    c = torch.diag(torch.tensor([1.0, 1e-9], dtype=torch.float64)).unsqueeze(0)
    log = F.matrix_log(c, floor=1e-4)
    assert abs(float(log[0, 1, 1]) - np.log(1e-4)) < 1e-6


def test_the_gradient_agrees_with_the_frechet_derivative_of_scipy() -> None:
    c = spd(1, 5)[0]
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    direction = direction + direction.mT
    # scipy has the Fréchet derivative of the exponential, whose inverse is log: Dlog(C)[Dexp(log C)[E]] = E.
    log = torch.from_numpy(np.real(scipy.linalg.logm(c.numpy())))
    _, pushed = scipy.linalg.expm_frechet(log.numpy(), direction.numpy())
    x = c.unsqueeze(0).requires_grad_()
    weight = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    weight = weight + weight.mT
    (grad,) = torch.autograd.grad((F.matrix_log(x) * weight).sum(), x)
    torch.testing.assert_close((grad[0] * torch.from_numpy(pushed)).sum(), (weight * direction).sum())


def test_small_eigenvalues_above_the_floor_are_preserved() -> None:
    a = torch.diag(torch.tensor([1.0, 1e-14], dtype=torch.float64)).unsqueeze(0)
    assert abs(float(spectral(a, Power(0.5))[0, 1, 1]) - 1e-7) < 1e-12
    single = torch.diag(torch.tensor([1.0, 1e-7])).unsqueeze(0)
    assert abs(float(spectral(single, Power(0.5))[0, 1, 1]) - 10**-3.5) < 1e-8


def test_high_powers_have_finite_gradients() -> None:
    x = (features(1, 9, 4) * torch.tensor([1.0, 1.0, 1e-4, 1e-7])).requires_grad_()
    rows = F.covariance(x)
    (grad,) = torch.autograd.grad(F.matrix_power(rows.mT @ rows, 60.0).sum(), x)
    assert torch.isfinite(grad).all()


def test_a_third_derivative_is_an_error() -> None:
    a = (spd(1, 3) / 20).requires_grad_()
    (first,) = torch.autograd.grad(spectral(a, Power(0.5)).sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a, create_graph=True)
    with pytest.raises(NotImplementedError, match="have two derivatives; a third is not implemented"):
        second.sum().backward()


def test_wrong_matrices_are_rejected() -> None:
    with pytest.raises(PolycovError, match=r"shape \(B, C, C\), got \(3, 3\)"):
        F.matrix_sqrt(torch.eye(3))
    with pytest.raises(PolycovError, match="got a trace that is negative"):
        F.matrix_sqrt(-torch.eye(3).unsqueeze(0))

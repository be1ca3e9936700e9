import numpy as np
import torch

import polycov
from polycov import functional as F
from samples import features


def test_signed_sqrt_is_the_root_or_a_line_close_to_zero() -> None:
    x = torch.tensor([[1.0, -1e-6, 1e-11, -1e-13, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0, -1e-3, 10**-5.5, -1e-7, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(F.signed_sqrt(x), expected, rtol=1e-9, atol=0)
    scale = torch.tensor([[1e-20], [1.0], [1e20]], dtype=torch.float64)
    torch.testing.assert_close(F.signed_sqrt(x * scale), expected * scale.sqrt(), rtol=1e-9, atol=0)


def test_signed_sqrt_has_a_finite_derivative_at_zero() -> None:
    x = torch.tensor([4.0, 0.0], dtype=torch.float64).requires_grad_()
    (grad,) = torch.autograd.grad(F.signed_sqrt(x).sum(), x)
    torch.testing.assert_close(grad[0], torch.tensor(0.25, dtype=torch.float64))
    assert torch.isfinite(grad[1])


def test_the_scale_of_features_does_not_overflow_in_the_signed_root() -> None:
    pool = polycov.create_pool("bilinear | identity | flatten | signed_sqrt", 4)
    x = features(1, 9, 4, dtype=torch.float32)
    for scale in (1e-24, 1e-10, 1.0, 1e19):
        scaled = (x * scale).requires_grad_()
        y = pool(scaled)
        torch.testing.assert_close(y / scale, pool(x), rtol=1e-4, atol=0)
        assert torch.isfinite(torch.autograd.grad(y.sum(), scaled)[0]).all()


def test_l2_has_length_one_or_zero() -> None:
    x = torch.tensor([[1e-30, 0.0], [3e30, 4e30], [0.0, 0.0]])
    torch.testing.assert_close(F.l2(x).norm(dim=1), torch.tensor([1.0, 1.0, 0.0]))


def test_signed_power_agrees_with_numpy() -> None:
    x = torch.tensor([[-8.0, 0.0, 0.5, 1e-8]], dtype=torch.float64)
    np.testing.assert_allclose(F.signed_power(x, 0.3), np.sign(x.numpy()) * np.abs(x.numpy()) ** 0.3, rtol=1e-12)
    torch.testing.assert_close(F.signed_power(x, 0.5), F.signed_sqrt(x))
    torch.testing.assert_close(F.signed_power(x, 1.0), x)

import pytest
import scipy.linalg
import torch

import polycov
from polycov import functional as F
from samples import features, relative, spd


def roots() -> torch.Tensor:
    return F.matrix_sqrt(spd(2, 5), "exact")


def test_lyapunov_agrees_with_scipy() -> None:
    q, g = roots(), features(2, 5, 5)
    expected = [scipy.linalg.solve_continuous_lyapunov(a.numpy(), b.numpy()) for a, b in zip(q, g, strict=True)]
    torch.testing.assert_close(F.lyapunov(q, g), torch.stack([torch.from_numpy(e) for e in expected]))


def test_lyapunov_is_twice_differentiable() -> None:
    q, g = roots()[:1, :3, :3].requires_grad_(), features(1, 3, 3).requires_grad_()

    def solve(q: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return F.lyapunov(q + q.mT, g)

    assert torch.autograd.gradcheck(solve, (q, g))
    assert torch.autograd.gradgradcheck(solve, (q, g))


def gradient(spec: str, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    y = polycov.create_pool(spec, x.shape[-1]).double()(x)
    return torch.autograd.grad((y * torch.linspace(-1, 1, y.shape[-1], dtype=y.dtype)).sum(), x)[0]


def test_the_lyapunov_gradient_is_that_of_the_exact_root_not_of_the_iteration() -> None:
    x = features(2, 40, 5)
    exact = gradient("bilinear | sqrt(exact) | flatten", x)
    assert relative(gradient("bilinear | sqrt(25, gradient=lyapunov) | flatten", x), exact) < 1e-10
    at_five = gradient("bilinear | sqrt(5, gradient=lyapunov) | flatten", x)
    assert relative(at_five, gradient("bilinear | sqrt(5) | flatten", x)) > 0.01


@pytest.mark.parametrize(("locations", "channels"), [(20, 64), (49, 128), (300, 16)])
def test_the_lyapunov_gradient_is_correct_at_rank_deficiency(locations: int, channels: int) -> None:
    x = features(2, locations, channels)
    exact = gradient("bilinear | sqrt(exact) | flatten", x)
    assert relative(gradient("bilinear | sqrt(20, gradient=lyapunov) | flatten", x), exact) < 1e-9

"""The gradients of every registered stage and method, to second order."""

import pytest
import torch
from torch import Tensor

from samples import APPROXIMATE, DIFFERENTIABLE, EXACT, POLYNOMIAL, SECOND_ORDER, SPECS, features, make, repeated


def check_gradients(spec: str, x: Tensor) -> None:
    pool = make(spec, x.shape[-1])  # the signed root bends sharply near 0, hence the small steps
    x = x.requires_grad_()
    assert torch.autograd.gradcheck(pool, x, eps=1e-7, atol=1e-5, rtol=1e-4)
    assert torch.autograd.gradgradcheck(pool, x, eps=1e-7, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("spec", DIFFERENTIABLE)
def test_gradients_at_full_rank(spec: str) -> None:
    check_gradients(spec, features(1, 5, 3))


# The tokens of the first test have mean 0, which has no direction, and no slope in the signed root.
SMOOTH = [s for s in SECOND_ORDER if s not in APPROXIMATE and (not s.startswith("[") or s.endswith(("balance", ")")))]


@pytest.mark.parametrize("spec", SMOOTH)
def test_gradients_at_repeated_eigenvalues(spec: str) -> None:
    check_gradients(spec, repeated(3))


@pytest.mark.parametrize("spec", POLYNOMIAL)
def test_gradients_of_polynomials_at_rank_deficiency(spec: str) -> None:
    check_gradients(spec, features(1, 2, 3))


@pytest.mark.parametrize("spec", [spec for spec in SPECS if list(make(spec).parameters())])
def test_gradients_of_parameters(spec: str) -> None:
    pool, x = make(spec), features(1, 7)
    names, values = zip(*pool.named_parameters(), strict=True)

    def run(*parameters: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(pool, dict(zip(names, parameters, strict=True)), x)
        return result

    assert torch.autograd.gradcheck(run, [v.detach().requires_grad_() for v in values])


# The signed root of a rank-deficient root is not smooth.
@pytest.mark.parametrize("spec", [spec for spec in EXACT if "signed_sqrt" not in spec])
def test_gradients_of_exact_functions_at_zero_eigenvalues_are_finite_and_correct_where_they_exist(spec: str) -> None:
    # With N < C the root is still smooth along the features: compare with a difference quotient.
    pool, x = make(spec), features(1, 3).requires_grad_()
    y = pool(x)
    weight = torch.linspace(-1, 1, y.shape[-1], dtype=torch.float64)
    (grad,) = torch.autograd.grad((y * weight).sum(), x)
    assert torch.isfinite(grad).all()
    step = 1e-6 * features(1, 3, seed=4)
    difference = ((pool(x + step) - pool(x - step)) * weight).sum()
    torch.testing.assert_close(2 * (grad * step).sum(), difference, rtol=1e-3, atol=1e-9)

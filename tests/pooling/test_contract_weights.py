"""Weights of the locations in every registered stage and method; a mask is the weights 0 and 1."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vmap

import polycov
from polycov.pooling.plan import Route
from samples import CHANNELS, DIFFERENTIABLE, SECOND_ORDER, SPECS, features, make, relative, routes

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch's forward mode

each_spec = pytest.mark.parametrize("spec", SPECS)
LOCATIONS = 7
# The maximum, and the minimum of simpool, depend only on which tokens count.
SMOOTH = pytest.mark.parametrize("spec", [spec for spec in DIFFERENTIABLE if not spec.startswith(("max", "simpool"))])


def some_weights(batch: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random weights between 0.1 and 1."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(batch, LOCATIONS, generator=generator, dtype=torch.float64) * 0.9 + 0.1).to(dtype)


def direction_of(y: Tensor) -> Tensor:
    return torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)


@each_spec
def test_weights_0_and_1_are_a_mask_whatever_the_padding_contains(spec: str) -> None:
    pool, x = make(spec), features(2, LOCATIONS)
    mask = torch.arange(LOCATIONS) < torch.tensor([[5], [LOCATIONS]])
    for padding in (0.3, torch.nan, 1e30):
        padded = torch.where(mask.unsqueeze(-1), x, padding)
        torch.testing.assert_close(pool(padded, mask.double()), pool(padded, mask), rtol=1e-9, atol=1e-9)
    maps = x.mT.reshape(2, CHANNELS, 1, LOCATIONS)
    assert torch.equal(pool(maps, mask.double().unsqueeze(1)), pool(x, mask.double()))


@each_spec
def test_only_the_ratios_of_weights_matter(spec: str) -> None:
    pool, x, w = make(spec), features(2, LOCATIONS), some_weights()
    expected = pool(x, w)
    for factor in (3.0, 1e-300, 1e300, 0.5):
        torch.testing.assert_close(pool(x, factor * w), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(pool(x, torch.full_like(w, 0.3)), pool(x), rtol=1e-9, atol=1e-9)


# A sum has the scale of the effective number of tokens, and shrinkage depends on it.
COUNTED = ("bilinear", "shrinkage=oas", "shrinkage=ledoit_wolf")


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not any(word in spec for word in COUNTED)])
def test_whole_weights_are_repetitions(spec: str) -> None:
    pool, x = make(spec), features(1, LOCATIONS)
    times = torch.tensor([3, 1, 0, 2, 1, 4, 1])
    repeated = x.repeat_interleave(times, 1)
    torch.testing.assert_close(pool(x, times.double().unsqueeze(0)), pool(repeated), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("spec", [spec for spec in SECOND_ORDER if "gram" in routes(spec)])
@pytest.mark.parametrize("channels", [3, 9])
def test_routes_agree_with_weights(spec: str, channels: int) -> None:
    def run(route: Route) -> tuple[Tensor, Tensor, Tensor]:
        pool, x, w = make(spec, channels, route=route), features(2, LOCATIONS, channels), some_weights()
        w[0, 2] = 0
        y = pool(x.requires_grad_(), w)
        along_tokens = torch.autograd.grad((y * direction_of(y)).sum(), x)[0]
        y = pool(x.detach(), w.requires_grad_())
        return y.detach(), along_tokens, torch.autograd.grad((y * direction_of(y)).sum(), w)[0]

    for result, expected in zip(run("gram"), run("covariance"), strict=True):
        assert relative(result, expected) < 1e-7


@SMOOTH
def test_gradients_of_weights_to_second_order(spec: str) -> None:
    pool, x, w = make(spec, 3), features(1, 5, 3), some_weights(1, seed=1)[:, :5].requires_grad_()
    assert torch.autograd.gradcheck(lambda w: pool(x, w), w, eps=1e-7, atol=1e-5, rtol=1e-4)
    assert torch.autograd.gradgradcheck(lambda w: pool(x, w), w, eps=1e-7, atol=1e-4, rtol=1e-3)


@SMOOTH
def test_the_derivative_at_weight_0_is_the_limit_of_a_difference(spec: str) -> None:
    pool, x, w = make(spec, 3), features(1, LOCATIONS, 3), some_weights(1)
    w[0, 2] = 0
    y = pool(x, w.requires_grad_())
    (gradient,) = torch.autograd.grad((y * direction_of(y)).sum(), w)
    with torch.no_grad():
        step = torch.zeros_like(w)
        step[0, 2] = 1e-7
        rise = 2 * pool(x, w + step) - 0.5 * pool(x, w + 2 * step) - 1.5 * y  # f′(0) h + O(h³)
        expected = (rise * direction_of(y)).sum() / 1e-7
    torch.testing.assert_close(gradient[0, 2], expected, rtol=1e-4, atol=1e-6)
    assert expected.abs() > 1e-6  # a derivative that is worth computing


@SMOOTH
def test_transforms_of_weights(spec: str) -> None:
    pool, x, w = make(spec), features(2, LOCATIONS), some_weights()
    w[0, 2] = 0

    def run(w: Tensor) -> Tensor:
        return pool(x, w)

    expected = torch.autograd.functional.jacobian(run, w)
    for jacobian in (jacrev, jacfwd):
        torch.testing.assert_close(jacobian(run)(w), expected, rtol=1e-9, atol=1e-9)
    along = some_weights(seed=1)
    tangent = (expected * along).sum((-2, -1))
    torch.testing.assert_close(jvp(run, (w,), (along,))[1], tangent, rtol=1e-9, atol=1e-9)
    with forward_ad.dual_level():
        dual = run(forward_ad.make_dual(w, along))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, tangent, rtol=1e-9, atol=1e-9)
    ws = torch.stack([w, along])
    torch.testing.assert_close(vmap(run)(ws), torch.stack([run(w) for w in ws]), rtol=1e-9, atol=1e-9)
    each = vmap(grad(lambda w: run(w).pow(3).sum()))(ws)
    ws.requires_grad_()
    (alone,) = torch.autograd.grad(torch.stack([run(w) for w in ws]).pow(3).sum(), ws)
    torch.testing.assert_close(each, alone, rtol=1e-8, atol=1e-8)


@each_spec
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_other_precision_and_under_autocast(spec: str, dtype: torch.dtype) -> None:
    pool, x = make(spec, dtype=torch.float32), features(2, LOCATIONS, dtype=torch.float32)
    w = some_weights(dtype=dtype)
    expected = pool(x, w.float())
    assert torch.equal(pool(x, w), expected)
    assert relative(pool(x, w.double()), expected) < 1e-6
    with torch.autocast("cpu", dtype=dtype):
        assert relative(pool(x.to(dtype), w), pool(x.to(dtype).float(), w)) < 1e-6


@each_spec
def test_wrong_weights_are_rejected_with_a_clear_message(spec: str) -> None:
    pool, x, w = make(spec), features(2, LOCATIONS), some_weights()
    for bad in (-0.1, torch.nan, torch.inf):
        wrong = w.clone()
        wrong[1, 2] = bad
        with pytest.raises(polycov.PolycovError, match=r"weights of at least 0, got .* in samples \[1\]"):
            pool(x, wrong)
    with pytest.raises(polycov.PolycovError, match=r"All weights of samples \[0\] are 0"):
        pool(x, w * torch.tensor([[0.0], [1.0]]))
    with pytest.raises(polycov.PolycovError, match=r"weights of shape \(2, 7\).* of shape \(2, 6\)"):
        pool(x, w[:, 1:])


@each_spec
def test_nan_of_positive_weight_is_reported(spec: str) -> None:
    pool, x, w = make(spec), features(3, LOCATIONS), some_weights(3)
    x[1, 2, 0] = torch.nan
    with pytest.raises(polycov.NonFiniteError, match=r"1 of 3 samples have NaN or Inf \(samples \[1\]\)"):
        pool(x, w)

"""Every registered stage and method on difficult input: tiny, huge, constant, zero, half precision, NaN."""

import pytest
import torch
from torch import Tensor

import polycov
from samples import CHANNELS, EXACT, SECOND_ORDER, SPECS, features, make, relative

each_spec = pytest.mark.parametrize("spec", SPECS)
ORDINARY = torch.rand(2, CHANNELS, 3, 3, generator=torch.Generator().manual_seed(0))
HARD = {
    "zeros": torch.zeros(2, CHANNELS, 3, 3),
    "constant": torch.full((2, CHANNELS, 3, 3), 0.1),
    "one constant sample": torch.stack([torch.ones(CHANNELS, 3, 3), ORDINARY[0]]),
    "one location": ORDINARY[..., :1, :1],
    "dead channel": ORDINARY * torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None, None],
    "equal channels": ORDINARY[:, :1].expand(2, CHANNELS, 3, 3),
    "tiny": ORDINARY * 1e-20,
    "huge": ORDINARY * 1e15,
    "both": ORDINARY * torch.tensor([1e-20, 1e15])[:, None, None, None],
    "duplicated channels": ORDINARY[:, [0, 1, 0, 1]],
    "small spread": 1 + 1e-4 * ORDINARY,
    "channels very far apart": ORDINARY * torch.tensor([1e-22, 1.0, 1e-24, 1e-20])[:, None, None],
    "channels far apart": ORDINARY * torch.tensor([1e-15, 1.0, 1e5, 1e10])[:, None, None],
}
OVERFLOWS = "polynomial(0.5, 1, -0.25)"  # C² of features of size 1e15 is not in the range of float32


@each_spec
@pytest.mark.parametrize("name", HARD)
def test_finite_input_gives_finite_values_and_gradients(spec: str, name: str) -> None:
    pool = make(spec, dtype=torch.float32)
    x = HARD[name].clone().requires_grad_()
    if OVERFLOWS in spec and name in ("huge", "both"):
        with pytest.raises(polycov.NonFiniteError, match=r"too large for .*float32: scale them down"):
            pool(x)
        return
    y = pool(x)
    (grad,) = torch.autograd.grad((y * torch.linspace(-1, 1, y.shape[-1])).sum(), x)
    assert torch.isfinite(y).all()
    assert torch.isfinite(grad).all()


@each_spec
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(spec: str, dtype: torch.dtype) -> None:
    pool = make(spec, dtype=torch.float32)
    x = features(2, 12, dtype=dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        y = pool(x)
        large = pool((features(2, 12) * 1000).to(dtype)) if OVERFLOWS not in spec else y
    assert y.dtype == torch.float32  # like torch's float32 operations under autocast
    assert relative(y, pool(x.float())) < 1e-6
    assert torch.isfinite(large).all()
    assert torch.isfinite(torch.autograd.grad(y.sum(), x)[0]).all()
    plain = pool(x.detach())
    assert plain.dtype == dtype  # like torch's layers without autocast
    assert relative(plain, y) < 0.01
    low = pool.to(dtype)(x.detach())
    rounded = any(word in spec for word in ("project", "probe", "self_cross"))  # weights
    assert relative(low, y) < (0.03 if rounded else 0.01)


@each_spec
@pytest.mark.parametrize("gradient", [False, True])
def test_nan_is_reported(spec: str, gradient: bool) -> None:
    pool = make(spec)
    x = features(3, 12)
    x[1, 2, 0] = torch.nan
    with pytest.raises(polycov.NonFiniteError, match=r"1 of 3 samples have NaN or Inf \(samples \[1\]\)"):
        pool(x.requires_grad_(gradient))


@pytest.mark.parametrize("spec", [s for s in SECOND_ORDER if s.startswith("covariance")])
def test_a_constant_map_has_covariance_zero(spec: str) -> None:
    pool = make(spec, dtype=torch.float32)
    constant = torch.full((1, 49, CHANNELS), 0.1) * torch.arange(1, CHANNELS + 1)
    assert torch.equal(pool(constant), pool(torch.zeros(1, 49, CHANNELS)))


@pytest.mark.parametrize("spec", [s for s in SECOND_ORDER if s.startswith("covariance")])
def test_a_large_mean_does_not_cost_digits(spec: str) -> None:
    x = features(2, 40, dtype=torch.float32) * 1e-3 + 1000  # the spread is a few hundred units in the last place
    single, double = make(spec, dtype=torch.float32), make(spec)
    if "project" in spec:
        double.load_state_dict(single.state_dict())
    assert relative(single(x), double(x.double())) < 1e-4


def zero_and_small(spec: str) -> tuple[Tensor, Tensor]:
    """The features of a zero map and of one close to zero."""
    pool = make(spec, dtype=torch.float32)
    return pool(torch.zeros(1, 9, CHANNELS)), pool(features(1, 9, dtype=torch.float32) * 1e-18)


UNBOUNDED = [spec for spec in SECOND_ORDER if "| log" in spec]
NORMALISED = [spec for spec in SECOND_ORDER if "l2" in spec or "unit_trace" in spec]
INVERSE = [spec for spec in SECOND_ORDER if "inverse" in spec]
CONTINUOUS = [spec for spec in SECOND_ORDER if spec not in UNBOUNDED + NORMALISED + INVERSE]


@pytest.mark.parametrize("spec", CONTINUOUS)
def test_a_zero_map_is_the_limit_of_small_ones(spec: str) -> None:
    zero, small = zero_and_small(spec)
    torch.testing.assert_close(zero, small, rtol=0, atol=1e-6)


@pytest.mark.parametrize("spec", NORMALISED)
def test_a_zero_map_has_feature_zero_where_small_ones_have_no_limit(spec: str) -> None:
    zero, small = zero_and_small(spec)
    assert torch.equal(zero, torch.zeros_like(zero))
    assert small.norm() > 0.1  # the direction of a small map survives normalisation


@pytest.mark.parametrize("spec", UNBOUNDED)
def test_the_logarithm_of_a_zero_map_is_below_that_of_small_ones(spec: str) -> None:
    zero, small = zero_and_small(spec)  # minus infinity, as far as the type allows
    assert torch.isfinite(zero).all()
    assert zero.norm() >= small.norm()


@pytest.mark.parametrize("spec", EXACT)
def test_a_mask_that_leaves_few_tokens_does_not_cost_digits(spec: str) -> None:
    pool, x = make(spec, dtype=torch.float32), features(2, 40, dtype=torch.float32)
    mask = torch.arange(40).expand(2, 40) < 3
    assert relative(pool(x, mask), pool(x[:, :3])) < 1e-5


def difficult() -> dict[str, Tensor]:
    """Tokens whose second moment is singular, or nearly so, although there are many of them."""
    x = features(2, 60, 8, dtype=torch.float32)
    low_rank = features(2, 60, 2, dtype=torch.float32) @ features(1, 2, 8, seed=3, dtype=torch.float32)
    return {
        "dead channels": x * torch.tensor([1.0, 0, 1, 0, 1, 1, 0, 1]),
        "duplicated channels": x[..., [0, 1, 2, 3, 0, 1, 2, 3]],
        "small spread": 1 + 1e-4 * x,
        "rank 2": low_rank,
    }


MORE = [f"covariance | {f} | triu" for f in ("sqrt(12)", "sqrt(100)", "sqrt(1000)", "sqrt(12, gradient=lyapunov)")]
# The slope of a signed root of a sketch or a covariance that is 0 but for rounding is anything.
SINGULAR = [spec for spec in SECOND_ORDER if "signed_" not in spec] + MORE


@pytest.mark.parametrize("spec", SINGULAR)
@pytest.mark.parametrize("name", difficult())
def test_singular_moments_cost_no_digits(spec: str, name: str) -> None:
    single, double = make(spec, 8, torch.float32), make(spec, 8)
    double.load_state_dict(single.state_dict())
    results = []
    for pool, x in ((single, difficult()[name]), (double, difficult()[name].double())):
        y = pool(x.requires_grad_())
        direction = torch.linspace(-1, 1, y.shape[-1], dtype=y.dtype)
        results.append((y, torch.autograd.grad((y * direction).sum(), x)[0]))
    (value, grad), (expected, expected_grad) = results
    assert relative(value, expected) < 1e-5
    assert relative(grad, expected_grad) < 1e-3


@each_spec
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_without_the_check_one_bad_sample_spoils_no_other(spec: str, bad: float) -> None:
    pool, x = make(spec), features(3, 12)
    expected = pool(x)
    pool.check_finite = False
    x[1, 2, 0] = bad
    y = pool(x.requires_grad_())
    torch.testing.assert_close(y[[0, 2]], expected[[0, 2]])
    assert not y[1].isfinite().all() or (bad == torch.inf and spec == "max")
    assert torch.autograd.grad(y[[0, 2]].sum(), x)[0][[0, 2]].isfinite().all()

"""The laws that every registered stage and method obeys. A new stage is tested here the moment it is registered."""

import io

import pytest
import torch

import polycov
from polycov import FirstOrderPool, SecondOrderPool
from samples import CHANNELS, EXACT, POLYNOMIAL, SECOND_ORDER, SPECS, features, make, relative, repeated

each_spec = pytest.mark.parametrize("spec", SPECS)
each_second_order = pytest.mark.parametrize("spec", SECOND_ORDER)


def test_every_stage_and_method_is_in_the_suite() -> None:
    text = " ".join(SPECS)
    assert all(stage.name in text for stage in polycov.list_stages())
    assert len(polycov.list_methods()) == 18


@each_spec
def test_spec_prints_back_and_repr_rebuilds(spec: str) -> None:
    pool = polycov.create_pool(spec, CHANNELS, seed=3)
    assert pool.spec == spec == str(polycov.parse_spec(spec))
    again = eval(repr(pool), {"SecondOrderPool": SecondOrderPool, "FirstOrderPool": FirstOrderPool})
    for a, b in zip(pool.state_dict().items(), again.state_dict().items(), strict=True):
        assert a[0] == b[0]
        assert torch.equal(a[1], b[1])


@each_spec
def test_maps_and_tokens_agree_and_out_features_is_the_size(spec: str) -> None:
    pool = make(spec)
    tokens = features(3, 12)
    maps = tokens.mT.reshape(3, CHANNELS, 3, 4)
    assert pool(tokens).shape == (3, pool.out_features)
    assert torch.equal(pool(maps), pool(tokens))


@each_spec
def test_non_contiguous_input_gives_the_same(spec: str) -> None:
    pool, x = make(spec), features(2, 12)
    strided = torch.stack([x, -x], -1).flip(1).flip(1)[..., 0]
    assert not strided.is_contiguous()
    torch.testing.assert_close(pool(strided), pool(x), rtol=1e-12, atol=1e-12)


@each_second_order
@pytest.mark.parametrize("locations", [5, 9, 20])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_routes_agree(spec: str, locations: int, dtype: torch.dtype, bound: float) -> None:
    results = {}
    for route in ("covariance", "gram", "paper"):
        try:
            pool = make(spec, 9, dtype, route=route)
        except polycov.PolycovError:
            continue
        x = features(2, locations, 9, dtype=dtype).requires_grad_()
        y = pool(x)
        direction = torch.linspace(-1, 1, y.numel(), dtype=dtype).view_as(y)
        (grad,) = torch.autograd.grad((y * direction).sum(), x)
        results[route] = y.detach(), grad
    assert "covariance" in results
    assert len(results) > 1 or "lyapunov" in spec
    for route, (value, grad) in results.items():
        assert relative(value, results["covariance"][0]) <= bound, route
        # The slope of the signed root is unbounded near 0, and with it what rounding does to the gradient of an
        # iterated root in float32. No method of the literature has the two together.
        steep = dtype == torch.float32 and "signed_sqrt" in spec and "sqrt(5)" in spec
        assert relative(grad, results["covariance"][1]) <= (1e-3 if steep else bound), route


def smooth(spec: str, x: torch.Tensor) -> None:
    # The signed root bends sharply near 0, hence steps small enough for it.
    pool = make(spec)
    x = x.requires_grad_()
    assert torch.autograd.gradcheck(pool, x, eps=1e-7, atol=1e-5, rtol=1e-4)
    assert torch.autograd.gradgradcheck(pool, x, eps=1e-7, atol=1e-4, rtol=1e-3)


@each_spec
def test_gradients_at_full_rank(spec: str) -> None:
    smooth(spec, features(1, 7))


@each_second_order
def test_gradients_at_repeated_eigenvalues(spec: str) -> None:
    smooth(spec, repeated())


@pytest.mark.parametrize("spec", POLYNOMIAL)
def test_gradients_of_polynomials_at_rank_deficiency(spec: str) -> None:
    smooth(spec, features(1, 3))


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "learnable" in spec or "gem" in spec or "project" in spec])
def test_gradients_of_parameters(spec: str) -> None:
    pool, x = make(spec), features(1, 7)
    names, values = zip(*pool.named_parameters(), strict=True)

    def run(*parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(pool, dict(zip(names, parameters, strict=True)), x)

    assert torch.autograd.gradcheck(run, [v.detach().requires_grad_() for v in values])


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
    "channels far apart": ORDINARY * torch.tensor([1e-15, 1.0, 1e5, 1e10])[:, None, None],
}
OVERFLOWS = "polynomial(0.5, 1, -0.25)"  # C² of features of size 1e15 is no float32


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
    assert y.dtype == torch.float32  # as torch's float32 operations under autocast
    assert relative(y, pool(x.float())) < 1e-6
    assert torch.isfinite(large).all()
    assert torch.isfinite(torch.autograd.grad(y.sum(), x)[0]).all()
    plain = pool(x.detach())
    assert plain.dtype == dtype  # as torch's layers without autocast
    assert relative(plain, y) < 0.01
    low = pool.to(dtype)(x.detach())
    assert relative(low, y) < (0.03 if "project" in spec else 0.01)  # a projection's own weights are rounded


@each_spec
def test_order_of_locations_does_not_matter(spec: str) -> None:
    pool, x = make(spec), features(2, 12)
    shuffled = x[:, torch.randperm(12, generator=torch.Generator().manual_seed(0))]
    torch.testing.assert_close(pool(shuffled), pool(x), rtol=1e-9, atol=1e-9)


@each_spec
def test_empty_batch(spec: str) -> None:
    pool = make(spec)
    x = features(2, 12)[:0].requires_grad_()
    y = pool(x)
    assert y.shape == (0, pool.out_features)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 12, CHANNELS)


@each_spec
def test_mask_is_exact_whatever_the_padding_holds(spec: str) -> None:
    pool = make(spec)
    x = features(2, 12)
    mask = torch.zeros(2, 12, dtype=torch.bool)
    mask[0, :7] = True
    mask[1, 2:] = True
    padded = torch.where(mask.unsqueeze(-1), x, torch.nan).requires_grad_()
    y = pool(padded, mask)
    torch.testing.assert_close(y[:1], pool(x[:1, :7]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(y[1:], pool(x[1:, 2:]), rtol=1e-9, atol=1e-9)
    (grad,) = torch.autograd.grad(y.square().sum(), padded)
    short = x[:1, :7].clone().requires_grad_()
    (expected,) = torch.autograd.grad(pool(short).square().sum(), short)
    torch.testing.assert_close(grad[:1, :7], expected, rtol=1e-7, atol=1e-7)
    assert (grad[~mask] == 0).all()


@each_spec
def test_state_dict_round_trip_is_bit_for_bit(spec: str) -> None:
    pool, x = make(spec, dtype=torch.float32, seed=5), features(2, 12, dtype=torch.float32)
    buffer = io.BytesIO()
    torch.save(pool.state_dict(), buffer)
    buffer.seek(0)
    other = polycov.create_pool(spec, CHANNELS, seed=6)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(x), pool(x))


@each_spec
def test_global_random_state_is_untouched_and_not_used(spec: str) -> None:
    x = features(2, 12)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = make(spec)(x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(make(spec)(x), first)


@each_spec
def test_thread_count_and_repetition_change_nothing(spec: str) -> None:
    x = features(3, 50, 32, dtype=torch.float32)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            pool = make(spec, 32, torch.float32)
            results.append((polycov.create_pool(spec, 32).state_dict(), pool(x)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[1][1], results[2][1])
    # BLAS may split its sums by threads; the pool itself must not differ.
    if "project" not in spec:  # whose components are free where variances nearly agree
        torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-4, atol=1e-5)
    assert all(torch.equal(v, results[1][0][k]) for k, v in results[0][0].items())


@pytest.mark.parametrize("spec", [s for s in SECOND_ORDER if "| sqrt(" in s])
def test_scaling_features_scales_the_square_root_feature(spec: str) -> None:
    if "gaussian" in spec or "project" in spec:
        pytest.skip("the Gaussian embedding and a fitted mean have a scale of their own")
    pool, x = make(spec), features(2, 12)
    power = 0.0 if "l2" in spec else 0.5 if "signed_sqrt" in spec else 1.0
    torch.testing.assert_close(pool(-3.0 * x), 3.0**power * pool(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spec", EXACT)
def test_gradient_of_exact_functions_at_zero_eigenvalues_is_finite_and_right_where_it_exists(spec: str) -> None:
    if "signed_sqrt" in spec:
        pytest.skip("the signed root of a rank-deficient root is not smooth")
    # With N < C the root is still smooth along the features: compare with a difference quotient.
    pool, x = make(spec), features(1, 3).requires_grad_()
    y = pool(x)
    weight = torch.linspace(-1, 1, y.shape[-1], dtype=torch.float64)
    (grad,) = torch.autograd.grad((y * weight).sum(), x)
    assert torch.isfinite(grad).all()
    step = 1e-6 * features(1, 3, seed=4)
    difference = ((pool(x + step) - pool(x - step)) * weight).sum()
    torch.testing.assert_close(2 * (grad * step).sum(), difference, rtol=1e-3, atol=1e-9)


@each_spec
def test_one_clear_sentence_for_wrong_input(spec: str) -> None:
    pool = make(spec)
    mask = torch.ones(2, 5, dtype=torch.bool)
    wrong = [
        (torch.zeros(8, CHANNELS), None, r"shape \(B, C, H, W\) or \(B, N, C\), got \(8, 4\)"),
        (torch.zeros(2, 3, 5), None, r"Expected 4 channels, got 5 in features of shape \(2, 3, 5\)"),
        (torch.zeros(2, 5, CHANNELS, dtype=torch.int64), None, r"floating-point features, got torch.int64"),
        (torch.zeros(2, 0, CHANNELS), None, r"at least one location"),
        (torch.zeros(2, 5, CHANNELS), mask[:, :3], r"boolean mask of shape \(2, 5\)"),
        (torch.zeros(2, 5, CHANNELS), mask.float(), r"boolean mask .* got torch.float32"),
        (torch.zeros(2, 5, CHANNELS), ~mask, r"hides every token of samples \[0, 1\]"),
    ]
    for x, m, message in wrong:
        with pytest.raises(polycov.PolycovError, match=message):
            pool(x, m)


@each_spec
def test_nan_never_passes_quietly(spec: str) -> None:
    pool = make(spec)
    x = features(3, 12)
    x[1, 2, 0] = torch.nan
    with pytest.raises(polycov.NonFiniteError, match=r"1 of 3 samples \(numbers \[1\]\)"):
        pool(x)


@pytest.mark.parametrize("spec", [s for s in SECOND_ORDER if s.startswith("covariance")])
def test_a_constant_map_has_covariance_zero(spec: str) -> None:
    pool = make(spec, dtype=torch.float32)
    constant = torch.full((1, 49, CHANNELS), 0.1) * torch.arange(1, CHANNELS + 1)
    assert torch.equal(pool(constant), pool(torch.zeros(1, 49, CHANNELS)))


@pytest.mark.parametrize("spec", [s for s in SECOND_ORDER if s.startswith("covariance")])
def test_a_large_mean_costs_no_digits(spec: str) -> None:
    x = features(2, 40, dtype=torch.float32) * 1e-3 + 1000  # the spread is a few hundred units in the last place
    single, double = make(spec, dtype=torch.float32), make(spec)
    if "project" in spec:
        double.load_state_dict(single.state_dict())
    assert relative(single(x), double(x.double())) < 1e-4


@each_second_order
def test_a_zero_map_is_the_limit_of_small_ones(spec: str) -> None:
    pool = make(spec, dtype=torch.float32)
    zero, small = pool(torch.zeros(1, 9, CHANNELS)), pool(features(1, 9, dtype=torch.float32) * 1e-18)
    if "log" in spec:
        assert zero.norm() >= small.norm()  # minus infinity, as far as the type reaches
    elif "l2" not in spec and "polynomial" not in spec and "project" not in spec and "gaussian" not in spec:
        assert zero.abs().max() < 1e-6


@each_spec
def test_state_survives_empty_and_assigned_loading(spec: str) -> None:
    pool, x = make(spec, dtype=torch.float32, seed=5), features(2, 12, dtype=torch.float32)
    emptied = polycov.create_pool(spec, CHANNELS, seed=6).to("meta").to_empty(device="cpu")
    emptied.load_state_dict(pool.state_dict())
    assert torch.equal(emptied(x), pool(x))
    with torch.device("meta"):
        assigned = polycov.create_pool(spec, CHANNELS, seed=6)
    assigned.load_state_dict(pool.state_dict(), assign=True)
    assert torch.equal(assigned(x), pool(x))


@pytest.mark.parametrize("spec", EXACT)
def test_a_mask_that_leaves_few_tokens_costs_no_digits(spec: str) -> None:
    pool, x = make(spec, dtype=torch.float32), features(2, 40, dtype=torch.float32)
    mask = torch.arange(40).expand(2, 40) < 3
    assert relative(pool(x, mask), pool(x[:, :3])) < 1e-5

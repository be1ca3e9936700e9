"""The laws that every registered stage and method obeys. A new stage is tested here as soon as it is registered."""

import io

import pytest
import torch
from torch import Tensor

import polycov
from polycov import CrossPool, FirstOrderPool, SecondOrderPool, SideBySidePool
from polycov.pooling.plan import Route
from samples import CHANNELS, SECOND_ORDER, SPECS, channels_of, features, make, relative, routes

ALL_ROUTES = [spec for spec in SECOND_ORDER if "gram" in routes(spec)]
each_spec = pytest.mark.parametrize("spec", SPECS)


def test_every_stage_and_method_is_in_the_suite() -> None:
    text = " ".join(SPECS)
    assert all(stage.name in text for stage in polycov.list_stages() if stage.name not in ("class_token", "cross"))
    assert len(polycov.list_methods()) == 37


@each_spec
def test_the_spec_prints_back_and_the_repr_rebuilds_the_pool(spec: str) -> None:
    pool = polycov.create_pool(spec, channels_of(spec, CHANNELS), seed=3)
    assert pool.spec == spec == str(polycov.parse_spec(spec))
    kinds = (CrossPool, FirstOrderPool, SecondOrderPool, SideBySidePool)
    again = eval(repr(pool), {kind.__name__: kind for kind in kinds})
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
def test_non_contiguous_input_gives_the_same_result(spec: str) -> None:
    pool, x = make(spec), features(2, 12)
    strided = torch.stack([x, -x], -1).flip(1).flip(1)[..., 0]
    assert not strided.is_contiguous()
    torch.testing.assert_close(pool(strided), pool(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", ALL_ROUTES)
@pytest.mark.parametrize("locations", [5, 9, 20])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_routes_agree(spec: str, locations: int, dtype: torch.dtype, bound: float) -> None:
    def run(route: Route) -> tuple[Tensor, Tensor]:
        pool = make(spec, 9, dtype, route=route)
        x = features(2, locations, 9, dtype=dtype).requires_grad_()
        y = pool(x)
        direction = torch.linspace(-1, 1, y.numel(), dtype=dtype).view_as(y)
        return y.detach(), torch.autograd.grad((y * direction).sum(), x)[0]

    factored = "tensor_sketch" in spec or "random_maclaurin" in spec
    routes: tuple[Route, ...] = ("gram", "paper") if factored else ("gram",)
    expected, expected_grad = run("covariance")
    for route in routes:
        value, grad = run(route)
        assert relative(value, expected) <= bound, route
        # The slope of the signed root is unbounded near 0, so it amplifies the rounding errors of an iterated root in
        # float32. No method of the literature combines the two.
        steep = dtype == torch.float32 and "| signed_" in spec and "sqrt(5)" in spec
        assert relative(grad, expected_grad) <= (1e-3 if steep else bound), route


@pytest.mark.parametrize("spec", [spec for spec in SECOND_ORDER if spec not in ALL_ROUTES])
@pytest.mark.parametrize("route", ["gram", "paper"])
def test_a_route_that_does_not_exist_is_rejected(spec: str, route: Route) -> None:
    with pytest.raises(polycov.PolycovError, match=f"The route '{route}' does not exist"):
        make(spec, route=route)


@each_spec
def test_the_order_of_locations_does_not_matter(spec: str) -> None:
    pool, x = make(spec), features(2, 12)
    shuffled = x[:, torch.randperm(12, generator=torch.Generator().manual_seed(0))]
    torch.testing.assert_close(pool(shuffled), pool(x), rtol=1e-9, atol=1e-9)


@each_spec
@pytest.mark.parametrize("route", ["auto", "covariance", "gram", "paper"])
def test_empty_batch(spec: str, route: Route) -> None:
    try:
        pool = make(spec, route=route)
    except polycov.PolycovError:
        return  # no such route
    x = features(2, 12)[:0].requires_grad_()
    y = pool(x)
    assert y.shape == (0, pool.out_features)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 12, CHANNELS)


@each_spec
def test_a_mask_is_exact_whatever_the_padding_contains(spec: str) -> None:
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
def test_an_integer_mask_means_what_a_boolean_one_means(spec: str) -> None:
    pool, x = make(spec), features(2, 12)
    mask = torch.arange(12) < torch.tensor([[7], [12]])
    expected = pool(x, mask)
    assert not torch.equal(expected, pool(x))
    for dtype in (torch.int64, torch.int32, torch.uint8):
        assert torch.equal(pool(x, mask.to(dtype)), expected)
    maps = x.mT.reshape(2, CHANNELS, 3, 4)
    assert torch.equal(pool(maps, mask.long().reshape(2, 3, 4)), expected)


@each_spec
def test_a_state_dict_restores_the_pool_bit_for_bit(spec: str) -> None:
    pool, x = make(spec, dtype=torch.float32, seed=5), features(2, 12, dtype=torch.float32)
    buffer = io.BytesIO()
    torch.save(pool.state_dict(), buffer)
    buffer.seek(0)
    other = polycov.create_pool(spec, channels_of(spec, CHANNELS), seed=6).eval()
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(x), pool(x))


@each_spec
def test_the_global_random_state_is_neither_used_nor_changed(spec: str) -> None:
    x = features(2, 12)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = make(spec)(x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(make(spec)(x), first)


@each_spec
def test_results_are_reproducible_with_any_number_of_threads(spec: str) -> None:
    x = features(3, 50, 32, dtype=torch.float32)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            pool = make(spec, 32, torch.float32)
            results.append((polycov.create_pool(spec, channels_of(spec, 32)).state_dict(), pool(x)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[1][1], results[2][1])
    # BLAS may split its sums by thread; the state of the pool must not differ.
    if "project" not in spec:  # components are arbitrary where variances are nearly equal
        torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-4, atol=1e-5)
    assert all(torch.equal(v, results[1][0][k]) for k, v in results[0][0].items())


# The Gaussian embedding and a fitted mean have a scale of their own; features side by side may have several.
HOMOGENEOUS = [
    s for s in SECOND_ORDER if "| sqrt(" in s and not s.startswith("[") and "gaussian" not in s and "project" not in s
]


@pytest.mark.parametrize("spec", HOMOGENEOUS)
def test_scaling_features_scales_the_square_root_feature(spec: str) -> None:
    pool, x = make(spec), features(2, 12)
    power = 1.0
    for stage in pool.post:
        power *= float(stage.degree)  # type: ignore[arg-type]
    torch.testing.assert_close(pool(-3.0 * x), 3.0**power * pool(x), rtol=1e-9, atol=1e-9)


@each_spec
def test_wrong_input_is_rejected_with_a_clear_message(spec: str) -> None:
    pool = make(spec)
    mask = torch.ones(2, 5, dtype=torch.bool)
    wrong = [
        (torch.zeros(8, CHANNELS), None, r"shape \(B, C, H, W\) or \(B, N, C\), got \(8, 4\)"),
        (torch.zeros(2, 3, 5), None, r"Expected 4 channels, got 5 in features of shape \(2, 3, 5\).*\(B, N, C\)\.$"),
        (torch.zeros(2, 5, 6, CHANNELS), None, r"Expected 4 channels, got 5 .* use x\.permute\(0, 3, 1, 2\)\.$"),
        (torch.zeros(2, CHANNELS, 9), None, r"Expected 4 channels, got 9 .* use x\.mT\.$"),
        (torch.zeros(CHANNELS, 5, 6), None, r"Expected 4 channels, got 6 .* use x\.unsqueeze\(0\)\.$"),
        (torch.zeros(2, 5, CHANNELS, dtype=torch.int64), None, r"floating-point features, got torch.int64"),
        (torch.zeros(2, 0, CHANNELS), None, r"at least one location"),
        (torch.zeros(2, 5, CHANNELS), mask[:, :3], r"Expected weights of shape \(2, 5\)"),
        (torch.zeros(2, 5, CHANNELS), mask.to(torch.complex64), r"Expected weights .* got torch.complex64"),
        (
            torch.zeros(2, 5, CHANNELS),
            mask.long() * 2,
            r"boolean mask, .* integers 1 and 0 .* got integers from 2 to 2; use weights.float()",
        ),
        (
            torch.zeros(2, 5, CHANNELS),
            mask[:, :3].long(),
            r"weights of shape \(2, 5\).* got torch.int64 of shape \(2, 3\)",
        ),
        (torch.zeros(2, 5, CHANNELS), ~mask, r"hides every token of samples \[0, 1\]"),
    ]
    for x, m, message in wrong:
        with pytest.raises(polycov.PolycovError, match=message):
            pool(x, m)


@each_spec
def test_a_state_dict_loads_into_an_empty_pool_and_by_assignment(spec: str) -> None:
    pool, x = make(spec, dtype=torch.float32, seed=5), features(2, 12, dtype=torch.float32)
    emptied = polycov.create_pool(spec, channels_of(spec, CHANNELS), seed=6).eval().to("meta").to_empty(device="cpu")
    emptied.load_state_dict(pool.state_dict())
    assert torch.equal(emptied(x), pool(x))
    with torch.device("meta"):
        assigned = polycov.create_pool(spec, channels_of(spec, CHANNELS), seed=6).eval()
    assigned.load_state_dict(pool.state_dict(), assign=True)
    assert torch.equal(assigned(x), pool(x))

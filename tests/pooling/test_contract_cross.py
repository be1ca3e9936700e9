"""The laws that every pool of two inputs obeys."""

import io

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, vmap

import polycov
from polycov import TwoInputPool
from samples import canonical, features, of_one_input, relative, stage_specs

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch's forward mode

SIDES = (4, 3)
MOMENTS = [spec for spec in canonical(stage_specs()) if not of_one_input(spec)]
FUNCTIONS = [f"cross(covariance) | {f} | flatten" for f in ("identity", "sqrt(1)", "sqrt(exact)", "power(0.3, exact)")]
VECTORS = ("tensor_sketch(8)", "tensor_sketch(8, learnable=True)", "random_maclaurin(8)", "count_sketch(5)")
METHODS = [polycov.get_method(name)() for name in polycov.list_methods(inputs=2) if name != "mcb"]
SPECS = canonical([*MOMENTS, *FUNCTIONS, *(f"cross | sqrt(5) | {v}" for v in VECTORS), *METHODS])
SPECS += ["cross(bilinear) | identity | tensor_sketch(8) | signed_sqrt | l2"]
SPECS += ["cross(bilinear) | sqrt(5) | flatten | project(4)"]
each_spec = pytest.mark.parametrize("spec", SPECS)


def pair(batch: int = 2, locations: int = 9, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x, y = features(batch, locations, SIDES[0], dtype=dtype), features(batch, locations, SIDES[1], seed=1, dtype=dtype)
    return x, y


def make(spec: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> TwoInputPool:
    pool = polycov.create_pool(spec, SIDES, seed=seed).to(dtype)
    if pool.fittable:
        pool.fit([pair(20, dtype=dtype)])
    return pool


def close(result: Tensor, expected: Tensor, bound: float = 1e-9) -> None:
    torch.testing.assert_close(result, expected, rtol=bound, atol=bound)


@each_spec
def test_the_spec_prints_back_and_the_state_rebuilds_the_pool(spec: str) -> None:
    pool, (x, y) = make(spec, torch.float32, seed=3), pair(dtype=torch.float32)
    assert pool.spec == spec == str(polycov.parse_spec(spec))
    again = eval(repr(pool), {"TwoInputPool": TwoInputPool})
    assert all(torch.equal(again.state_dict()[k], v) for k, v in pool.state_dict().items() if "post" not in k)
    buffer = io.BytesIO()
    torch.save(pool.state_dict(), buffer)
    buffer.seek(0)
    other = polycov.create_pool(spec, SIDES, seed=6)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(x, y), pool(x, y))
    assert pool(x, y).shape == (2, pool.out_features)


@each_spec
def test_maps_and_tokens_agree_in_any_combination_and_order(spec: str) -> None:
    pool, (x, y) = make(spec), pair()
    expected = pool(x, y)
    map_x, map_y = x.mT.reshape(2, SIDES[0], 3, 3), y.mT.reshape(2, SIDES[1], 3, 3)
    for a, b in ((map_x, map_y), (map_x, y), (x, map_y)):
        assert torch.equal(pool(a, b), expected)
    close(pool(x.flip(1), y.flip(1)), expected)
    assert not torch.allclose(pool(x.flip(1), y), expected)  # locations must match
    weights = torch.rand(2, 3, 3, dtype=torch.float64)
    assert torch.equal(pool(map_x, map_y, weights), pool(x, y, weights.flatten(1)))


@each_spec
def test_masks_and_weights(spec: str) -> None:
    pool, (x, y) = make(spec), pair()
    mask = torch.arange(9) < torch.tensor([[6], [9]])
    hidden = torch.where(mask.unsqueeze(-1), y, torch.nan)
    expected = torch.cat([pool(x[:1, :6], y[:1, :6]), pool(x[1:], y[1:])])
    close(pool(x, hidden, mask), expected)
    close(pool(x, hidden, 7 * mask.double()), expected)
    assert not torch.allclose(pool(x, y), expected)


@each_spec
def test_gradients_to_second_order_also_of_weights(spec: str) -> None:
    pool, (x, y), weights = make(spec), pair(1, 6), torch.rand(1, 6, dtype=torch.float64).add(0.1)
    inputs = [z.requires_grad_() for z in (x, y, weights)]
    assert torch.autograd.gradcheck(pool, inputs, eps=1e-7, atol=1e-5, rtol=1e-4)
    assert torch.autograd.gradgradcheck(pool, inputs, eps=1e-7, atol=1e-4, rtol=1e-3)
    weights = weights.detach().clone()
    weights[0, 1] = 0
    y0 = pool(x, y, weights.requires_grad_())
    assert torch.autograd.grad(y0.square().sum(), weights)[0].isfinite().all()


@each_spec
def test_transforms(spec: str) -> None:
    pool, (x, y) = make(spec), pair()
    expected = torch.autograd.functional.jacobian(lambda x: pool(x, y), x)
    for jacobian in (jacrev, jacfwd):
        close(jacobian(lambda x: pool(x, y))(x), expected)
    xs, ys = torch.stack([x, x + 1]), torch.stack([y, 2 * y])
    close(vmap(pool)(xs, ys), torch.stack([pool(x, y), pool(x + 1, 2 * y)]))
    per_sample = vmap(grad(lambda x, y: pool(x, y).pow(3).sum()))(xs, ys)
    xs.requires_grad_()
    (alone,) = torch.autograd.grad(pool(xs[0], ys[0]).pow(3).sum() + pool(xs[1], ys[1]).pow(3).sum(), xs)
    close(per_sample, alone, 1e-8 * max(1.0, float(alone.abs().max())))


@each_spec
@pytest.mark.parametrize("factors", [(0.0, 1.0), (0.0, 0.0), (1e-20, 1e15), (1e15, 1e15), (1e-20, 1e-20)])
def test_finite_input_gives_finite_values_and_gradients(spec: str, factors: tuple[float, float]) -> None:
    pool = make(spec, torch.float32)
    x, y = ((z * factor).requires_grad_() for z, factor in zip(pair(dtype=torch.float32), factors, strict=True))
    if "identity" in spec and "l2" not in spec and factors[0] == 1e15:
        y = (y.detach() * 1e-15).requires_grad_()  # the moment itself must be in the range of float32
    result = pool(x, y)
    assert result.isfinite().all()
    for gradient in torch.autograd.grad((result * torch.linspace(-1, 1, result.shape[1])).sum(), (x, y)):
        assert gradient.isfinite().all()


@each_spec
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(spec: str, dtype: torch.dtype) -> None:
    pool, (x, y) = make(spec, torch.float32), pair(dtype=dtype)
    with torch.autocast("cpu", dtype=dtype):
        under = pool(x, y)
    assert under.dtype == torch.float32
    assert relative(under, pool(x.float(), y.float())) < 1e-6
    assert pool(x, y).dtype == dtype
    assert pool(x, y.float()).dtype == torch.float32  # as torch promotes


@each_spec
def test_wrong_input_is_rejected_with_a_clear_message(spec: str) -> None:
    pool, (x, y) = make(spec), pair()
    for a, b, message in (
        (x[..., :3], y, r"The first input: Expected 4 channels, got 3"),
        (x, y.mT, r"The second input: Expected 3 channels, got 9 .* use x\.mT"),
        (x, y[:, :5], r"same samples and locations in both inputs, got \(2, 9, 4\) and \(2, 5, 3\)"),
        (x, y[:1], r"same samples and locations in both inputs"),
        (x, y.long(), r"The second input: Expected floating-point features"),
    ):
        with pytest.raises(polycov.PolycovError, match=message):
            pool(a, b)
    y[1, 2, 0] = torch.nan
    with pytest.raises(polycov.NonFiniteError, match=r"1 of 2 samples have NaN or Inf \(samples \[1\]\)"):
        pool(x, y)


def test_fitting_needs_both_inputs() -> None:
    pool = polycov.create_pool("cross | sqrt(5) | flatten | project(4)", SIDES)
    with pytest.raises(polycov.PolycovError, match="tuples of both inputs"):
        pool.fit([pair()[0]])

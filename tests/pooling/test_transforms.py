"""Functions under transforms, one by one, and what a transform lets Python know about a tensor."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import polycov
from polycov import functional as F
from polycov.pooling.functions.base import apply_function
from polycov.pooling.functions.lyapunov import LyapunovSqrt
from polycov.pooling.functions.newton_schulz import NewtonSchulzEigenvalues
from polycov.pooling.functions.spectral import Power, spectral
from polycov.pooling.functions.sqrt_minimax import MinimaxSqrt
from polycov.pooling.moments import _SecondMoment
from polycov.pooling.pool import SecondOrderPool
from polycov.pooling.transforms import is_batched, is_readable, needs_gradient
from polycov.pooling.vectors.buckets import bucket_table
from samples import features, spd, unit_trace

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch's forward mode

ROOT = torch.ones(1, dtype=torch.float64)


def symmetric(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(unit_trace(x + x.mT))


def as_published(matrix: Tensor, iterations: int) -> Tensor:
    """The Newton–Schulz iteration as published, in operations that torch differentiates by itself."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    y, z = matrix, eye.expand_as(matrix)
    for _ in range(iterations):
        t = 0.5 * (3 * eye - z @ y)
        y, z = y @ t, t @ z
    return y


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "second_moment": F.second_moment,
    "bucket_sum, scattered": lambda x: F.bucket_sum(x.flatten(1), torch.tensor([0, 2, 2, 1, 3, 0, 1, 1, 2]), 3) ** 2,
    "bucket_sum, gathered": lambda x: F.bucket_sum(x.flatten(1), torch.tensor([0, 5, 4, 1, 7, 2, 3, 7, 6]), 7) ** 2,
    "newton_schulz": symmetric(lambda x: F.newton_schulz(x, 5)),
    "newton_schulz, one iteration": symmetric(lambda x: F.newton_schulz(x, 1)),
    "newton_schulz, inverse": symmetric(lambda x: F.newton_schulz(x, 4, inverse=True)),
    "spectral": symmetric(lambda x: spectral(x, NewtonSchulzEigenvalues(5))),
    "spectral root": symmetric(lambda x: spectral(x, Power(0.5))),
    "lyapunov": lambda x: F.lyapunov(unit_trace(x + x.mT), x @ x),
    "lyapunov root": symmetric(lambda x: LyapunovSqrt(25)(x, ROOT, "products")),
}
each_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


@each_function
def test_both_modes_agree_with_difference_quotients_to_second_order(function: Callable[[Tensor], Tensor]) -> None:
    x = spd(2, 3).requires_grad_()
    # torch's check of batches differentiates by vmap through a graph that was made outside it.
    assert gradcheck(function, x, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    assert gradgradcheck(function, x, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True)


@each_function
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_of_dual_numbers_carries_its_own_derivative(
    function: Callable[[Tensor], Tensor], create_graph: bool
) -> None:
    x, direction = spd(2, 3), features(2, 3, 3)

    def gradient(x: Tensor, create_graph: bool = False) -> Tensor:
        x = x if x.requires_grad else x.clone().requires_grad_()
        return torch.autograd.grad(function(x).pow(3).sum(), x, create_graph=create_graph)[0]

    with forward_ad.dual_level():
        dual = gradient(forward_ad.make_dual(x.clone().requires_grad_(), direction), create_graph)
        tangent = forward_ad.unpack_dual(dual).tangent
    step = 1e-6
    expected = (gradient(x + step * direction) - gradient(x - step * direction)) / (2 * step)
    torch.testing.assert_close(tangent, expected, rtol=1e-5, atol=1e-6)


@each_function
def test_vmap_equals_a_loop_in_any_dimension_and_nested(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.stack([spd(2, 3, locations) for locations in (5, 9, 20)])
    expected = torch.stack([function(item) for item in x])
    for dim in range(4):
        torch.testing.assert_close(vmap(function, dim)(x.movedim(0, dim)), expected)
    torch.testing.assert_close(vmap(vmap(function))(x.unsqueeze(2)).squeeze(2), expected)
    empty = vmap(function)(x[:, :0])
    assert empty.shape == (3, 0, *expected.shape[2:])


@each_function
@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0)])
def test_derivatives_can_be_mapped_over_points_or_directions(
    function: Callable[[Tensor], Tensor], in_dims: tuple[int | None, int | None]
) -> None:
    points, directions = torch.stack([spd(2, 3, 5), spd(2, 3, 9)]), features(4, 3, 3).reshape(2, 2, 3, 3)

    def forward(x: Tensor, direction: Tensor) -> Tensor:
        return jvp(function, (x,), (direction,))[1]

    def backward(x: Tensor, direction: Tensor) -> Tensor:
        return vjp(function, x)[1](function(x) + direction.sum())[0]

    arguments = [y[0] if dim is None else y for y, dim in zip((points, directions), in_dims, strict=True)]
    pairs = [(y if dim is not None else y.expand(2, *y.shape)) for y, dim in zip(arguments, in_dims, strict=True)]
    for derivative in (forward, backward):
        expected = torch.stack([derivative(x, direction) for x, direction in zip(*pairs, strict=True)])
        torch.testing.assert_close(vmap(derivative, in_dims)(*arguments), expected)


@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0), (1, 0)])
def test_bucket_sum_can_be_mapped_over_buckets(in_dims: tuple[int | None, int]) -> None:
    x = features(3, 2, 4).reshape(3, 2, 4)
    buckets = torch.tensor([[0, 1, 1, 2], [2, 1, 2, 3], [1, 0, 2, 0]])
    tables = torch.stack([bucket_table(bucket, 3) for bucket in buckets])

    def run(x: Tensor, bucket: Tensor, table: Tensor) -> Tensor:
        return F.bucket_sum(x, bucket, 3, table)

    argument = x[0] if in_dims[0] is None else x.movedim(0, in_dims[0])
    items = x[:1].expand(3, -1, -1) if in_dims[0] is None else x
    expected = torch.stack([F.bucket_sum(item, bucket, 3) for item, bucket in zip(items, buckets, strict=True)])
    torch.testing.assert_close(vmap(run, (*in_dims, 0))(argument, buckets, tables), expected)


each_order = pytest.mark.parametrize("modes", list(itertools.product([jacfwd, jacrev], repeat=3)))


@each_order
def test_a_third_derivative_on_eigenvalues_is_an_error(modes: tuple[Callable[..., Any], ...]) -> None:
    function = FUNCTIONS["spectral root"]
    for mode in modes:
        function = mode(function)
    with pytest.raises(NotImplementedError, match="a third is not implemented"):
        function(spd(1, 2))


@each_order
def test_the_third_derivative_of_an_iteration_is_that_of_plain_operations(
    modes: tuple[Callable[..., Any], ...],
) -> None:
    x = spd(1, 2)
    functions = [FUNCTIONS["newton_schulz"], symmetric(lambda x: as_published(x, 5))]
    for mode in modes:
        functions = [mode(function) for function in functions]
    torch.testing.assert_close(functions[0](x), functions[1](x))


@pytest.mark.parametrize("norm", ["trace", "frobenius", "square"])
def test_best_polynomials_have_a_third_derivative(norm: str) -> None:
    function = MinimaxSqrt(3, 5, norm=norm)
    x, direction = spd(2, 2).split(1)

    def along(t: Tensor) -> Tensor:
        return apply_function(function, x + t * direction).sum()

    first = jacrev(hessian(along))(torch.tensor(0.1, dtype=torch.float64))
    second = jacfwd(hessian(along))(torch.tensor(0.1, dtype=torch.float64))
    steps = [float(hessian(along)(torch.tensor(0.1 + h, dtype=torch.float64))) for h in (-1e-4, 1e-4)]
    assert float(first) == pytest.approx((steps[1] - steps[0]) / 2e-4, rel=1e-4)
    assert float(second) == pytest.approx(float(first), rel=1e-9)


def test_values_are_readable_except_inside_vmap() -> None:
    seen: list[tuple[bool, bool]] = []

    def look(x: Tensor) -> Tensor:
        seen.append((is_readable(x), is_batched(x)))
        return x.sum()

    x = torch.rand(3)
    for run in (look, grad(look), vmap(look), vmap(grad(look)), grad(lambda x: vmap(look)(x).sum())):
        run(x)
    jvp(look, (x,), (x,))
    assert seen == [(True, False), (True, False), (False, True), (False, True), (False, True), (True, False)]


def test_values_are_not_readable_inside_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not is_readable(torch.rand(3))


def test_a_plan_knows_inside_transforms_whether_a_gradient_follows() -> None:
    pool = SecondOrderPool(512, "covariance | sqrt(5) | triu")
    seen: list[tuple[bool, str]] = []

    def look(x: Tensor) -> Tensor:
        seen.append((needs_gradient(x), pool.plan(x).algorithm))
        return x.sum()

    x = torch.zeros(2, 1, 600, 512)
    without, with_gradient = (False, "products"), (True, "eigenvalues")
    vmap(look)(x)
    jvp(look, (x[0],), (x[0],))
    assert seen == [without] * 2
    grad(look)(x[0])
    vmap(grad(look))(x)
    vmap(look)(x.requires_grad_())
    assert seen[2:] == [with_gradient] * 3
    with torch.no_grad():
        vmap(look)(x)
    assert seen[5:] == [without]


def test_nan_is_reported_wherever_values_are_readable() -> None:
    pool = polycov.create_pool("mpn-cov", 4).double()
    x = features(2, 9)
    x[1, 0, 0] = torch.nan
    with pytest.raises(polycov.NonFiniteError, match=r"1 of 2 samples have NaN or Inf \(samples \[1\]\)"):
        grad(lambda x: pool(x).sum())(x)
    with pytest.raises(polycov.NonFiniteError, match=r"1 of 2 samples have NaN or Inf \(samples \[1\]\)"):
        jvp(pool, (x,), (x,))
    pool = polycov.create_pool("isqrt-cov", 4).double()
    assert vmap(pool)(x.unsqueeze(1)).isnan().any(-1).flatten().tolist() == [False, True]


def test_without_gradients_a_function_runs_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("a context was set up")

    monkeypatch.setattr(_SecondMoment, "setup_context", fail)
    x = features(2, 5)
    with torch.no_grad():
        F.second_moment(x)
    with torch.inference_mode():
        F.second_moment(x)
    with pytest.raises(AssertionError, match="a context was set up"):
        F.second_moment(x)
    with torch.no_grad(), forward_ad.dual_level(), pytest.raises(AssertionError, match="a context was set up"):
        F.second_moment(forward_ad.make_dual(x, x))

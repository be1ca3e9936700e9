"""Pools that need no eigenvalues compile to one graph, for one size or for any, with the same values and gradients."""

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import polycov
from samples import CHANNELS, PRODUCTS, SPECS, features, make

# Specs that differ only in the width of a sketch compile alike, and those of the methods combine the same stages.
NARROW = ("tensor_sketch(6)", "random_maclaurin(6)", "count_sketch(6)", "count_sketch(64)")
ONCE = [spec for spec in SPECS if (spec in PRODUCTS or "|" not in spec) and not spec.endswith(NARROW)]
ONCE += ["self_cross(3, heads=2) | sqrt(5) | flatten"]
# Every stage once: the vector and the stages after it do not depend on the number of locations.
ANY_SIZE = [
    "[average, covariance | sqrt(5) | triu] | balance",
    "[stage(3) | max, stage(4) | covariance | sqrt(5) | triu]",
    "max",
    "gem(3)",
    "attentive_probe(2)",
    "efficient_probe(2)",
    "simpool(2)",
    "bilinear | identity | tensor_sketch(6) | signed_sqrt | l2",
    "covariance | sqrt(5) | count_sketch(12) | project(6)",
    "covariance | log(16) | random_maclaurin(24)",
    "covariance | power(0.7, 12) | flatten",
    "covariance | sqrt(5) | rotated(12)",
    "gaussian | polynomial(0.5, 1, -0.25) | triu",
    "covariance | sqrt_taylor(11) | triu | signed_power(0.7)",
    "bilinear | brownian(-5.3) | triu",
    "covariance | sparse_inverse(5) | triu",
    "dropcov | identity | triu",
    "covariance | sqrt_minimax(5, 9, low=0.1) | triu",
    "self_cross(3, heads=2) | sqrt(5) | flatten",
]


def check(pool: torch.nn.Module, compiled: Callable[..., Tensor], x: Tensor, mask: Tensor | None = None) -> None:
    """Checks that values and gradients agree."""
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, result = pool(b, mask), compiled(a, mask)
    torch.testing.assert_close(result, expected)
    expected.square().sum().backward()
    result.square().sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("specs", [ONCE, ANY_SIZE], ids=["one size", "any size"])
def test_every_stage_is_compiled(specs: list[str]) -> None:
    parsed = [polycov.parse_spec(spec) for spec in specs]
    names = {stage.stage.name for spec in parsed for stage in spec.stages}
    left_out = {"class_token", "cross", "log_cholesky", "sqrt_pade", "tangent"}  # or tested elsewhere
    assert names == {stage.name for stage in polycov.list_stages()} - left_out


@pytest.mark.slow
@pytest.mark.parametrize("spec", ONCE)
def test_a_pool_compiles_for_one_size(spec: str) -> None:
    pool = make(spec)
    check(pool, torch.compile(pool, fullgraph=True, backend="aot_eager"), features(2, 12))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ANY_SIZE)
def test_a_pool_compiles_for_any_batch_and_number_of_locations(spec: str) -> None:
    pool = make(spec)
    compiled = torch.compile(pool, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, locations in ((2, 12), (5, 31), (3, 2)):  # the last on the Gram side
        check(pool, compiled, features(batch, locations))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["gem(3)", "covariance | sqrt(5) | tensor_sketch(6)"])
def test_a_pool_compiles_for_maps_of_any_size(spec: str) -> None:
    pool = make(spec)
    compiled = torch.compile(pool, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, height in ((2, 4), (3, 7)):
        check(pool, compiled, features(batch, height * 5).mT.reshape(batch, CHANNELS, height, 5))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["average", "gem(3)", "covariance | sqrt(5) | tensor_sketch(6)"])
def test_a_pool_compiles_with_a_mask(spec: str) -> None:
    pool = make(spec)
    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    mask = torch.arange(12).expand(2, 12) < torch.tensor([[7], [12]])
    check(pool, compiled, features(2, 12), mask)
    check(pool, compiled, features(2, 12), mask.long())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # the compiler uses what torch deprecates
@pytest.mark.parametrize(("dynamic", "shapes"), [(False, [(2, 12)]), (True, [(2, 12), (3, 30)])])
def test_a_pool_compiles_with_the_default_backend(dynamic: bool, shapes: list[tuple[int, int]]) -> None:
    pool = polycov.create_pool("ipccp-ts", CHANNELS, dim=24)
    compiled = torch.compile(pool, fullgraph=True, dynamic=dynamic)
    for batch, locations in shapes:
        check(pool, compiled, features(batch, locations, dtype=torch.float32))

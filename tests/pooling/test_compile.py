"""Pools without an eigendecomposition compile whole, for one size and for any, to the same values and gradients."""

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import polycov
from samples import CHANNELS, EXACT, SPECS, features, make

WHOLE = [spec for spec in SPECS if spec not in EXACT and "lyapunov" not in spec]


def agree(pool: torch.nn.Module, compiled: Callable[..., Tensor], x: Tensor, mask: Tensor | None = None) -> None:
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, found = pool(b, mask), compiled(a, mask)
    torch.testing.assert_close(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("spec", WHOLE)
def test_one_size(spec: str) -> None:
    pool = make(spec)
    agree(pool, torch.compile(pool, fullgraph=True, backend="aot_eager"), features(2, 12))


@pytest.mark.parametrize("spec", WHOLE)
def test_any_batch_and_size(spec: str) -> None:
    pool = make(spec)
    compiled = torch.compile(pool, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, locations in ((2, 12), (3, 5), (4, 30), (5, 31)):
        agree(pool, compiled, features(batch, locations))


@pytest.mark.parametrize("spec", ["average", "max", "gem(3)", "covariance | sqrt(5) | tensor_sketch(6)"])
def test_maps_of_any_size(spec: str) -> None:
    pool = make(spec)
    compiled = torch.compile(pool, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, height in ((2, 4), (3, 7)):
        maps = features(batch, height * 5).mT.reshape(batch, CHANNELS, height, 5)
        agree(pool, compiled, maps)


@pytest.mark.parametrize("spec", ["average", "gem(3)", "covariance | sqrt(5) | tensor_sketch(6)"])
def test_masks(spec: str) -> None:
    pool = make(spec)
    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    agree(pool, compiled, features(2, 12), torch.arange(12).expand(2, 12) < torch.tensor([[7], [12]]))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # the compiler uses what torch deprecates
@pytest.mark.parametrize("dynamic", [False, True])
def test_by_the_real_compiler(dynamic: bool) -> None:
    pool = polycov.create_pool("ipccp-ts", CHANNELS, dim=24)
    compiled = torch.compile(pool, fullgraph=True, dynamic=dynamic)
    for batch, locations in ((2, 12), (3, 30)):
        agree(pool, compiled, features(batch, locations, dtype=torch.float32))

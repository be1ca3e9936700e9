from typing import Any

import pytest
import torch
from torch import nn

from polycov.models.modes import evaluation_mode


def modes(module: nn.Module) -> list[bool]:
    return [inner.training for inner in module.modules()]


def test_every_submodule_gets_its_own_mode_back() -> None:
    frozen = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4).eval(), nn.Dropout())
    other = nn.Dropout().eval()
    before = modes(frozen)
    assert before == [True, True, False, True]
    with evaluation_mode(frozen, other):
        assert modes(frozen) == [False] * 4
        assert not other.training
    assert modes(frozen) == before
    assert not other.training


def test_modes_come_back_after_an_error() -> None:
    module = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
    with pytest.raises(RuntimeError, match="stop"), evaluation_mode(module):
        raise RuntimeError("stop")
    assert modes(module) == [True, True, False]


def test_a_compiled_module_is_restored_too() -> None:
    network = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
    compiled: Any = torch.compile(network, backend="eager")
    with evaluation_mode(compiled):
        assert modes(network) == [False] * 3
    assert modes(network) == [True, True, False]

from pathlib import Path

import pytest
import torch
from torch import nn

from polycov.errors import PolycovError
from polycov.training.checkpoint import load_checkpoint, save_checkpoint


def stepped(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer: torch.optim.Optimizer
    if kind == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.arange(12.0).view(4, 3) / 12).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_checkpoint_resumes_bit_for_bit(tmp_path: Path, kind: str) -> None:
    model, optimizer = stepped(kind)
    save_checkpoint(tmp_path / "c.safetensors", model, optimizer, {"epoch": 3, "sums": [0.1, 2.0]})
    step(model, optimizer)
    other, fresh = stepped(kind)
    step(other, fresh)
    step(other, fresh)
    assert load_checkpoint(tmp_path / "c.safetensors", other, fresh) == {"epoch": 3, "sums": [0.1, 2.0]}
    step(other, fresh)
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_another_model_or_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    model, optimizer = stepped("sgd")
    save_checkpoint(path, model, optimizer, {})
    wider = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    with pytest.raises(PolycovError, match=r"0.weight is \(4, 3\), not \(5, 3\)"):
        load_checkpoint(path, wider, torch.optim.SGD(wider.parameters()))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(PolycovError, match="Cannot read"):
        load_checkpoint(path, model, optimizer)
    with pytest.raises(PolycovError, match="There is no file"):
        load_checkpoint(tmp_path / "none", model, optimizer)

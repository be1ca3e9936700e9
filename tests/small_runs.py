"""Small training runs, and what is compared of them."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from polycov.system.json_files import read_json_lines
from polycov.training.config import Config


def config(trees: Path, **training: Any) -> Config:
    small: dict[str, Any] = {"size": 64, "workers": 0, "epochs": 2, "batch_size": 6}
    network: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "stage": 2}
    network |= {"pool": "ipccp-ts", "channels": 16, "dim": 64}
    return Config(data=str(trees)).replace(**{**small, **network, **training})


def metrics(folder: Path) -> list[dict[str, Any]]:
    return list(read_json_lines(folder / "metrics.jsonl"))


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name

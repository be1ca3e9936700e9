"""A small model with a fitted projection, and the folder it is saved in."""

from pathlib import Path

import pytest
import torch

import polycov


@pytest.fixture(scope="module")
def model() -> polycov.Model:
    torch.manual_seed(0)
    model = polycov.create_model(
        "test_resnet", pool="ipccp-fit", dim=8, channels=12, num_classes=3, weights="none", size=64
    )
    model.pool.fit([torch.randn(40, 12, 6, 6)])
    model.classes = ["oak", "ash", "elm"]
    return model.eval()


@pytest.fixture
def saved(model: polycov.Model, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"

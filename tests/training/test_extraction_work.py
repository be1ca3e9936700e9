from pathlib import Path

import pytest
import torch

from polycov.data import read_data
from polycov.data.transforms import Preprocessing
from polycov.engines.engine import Engine, EngineOptions
from polycov.errors import PolycovError
from polycov.models.backbones import Backbone, load_plugin
from polycov.training.features import extract_features
from polycov.training.train import train

PLUGIN = """
import torch
from timm.models import register_model

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 9, stride=8)
        self.num_features = 8

    def forward_features(self, x):
        return self.convolution(x)

@register_model
def small_of_a_plugin(pretrained=False, **options):
    return Small()
"""


@pytest.mark.slow
def test_helper_processes_extract_the_same_with_a_network_of_a_plugin(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plugin = tmp_path / "small_plugin.py"
    plugin.write_text(PLUGIN)
    load_plugin(plugin)
    data, backbone = read_data(trees), Backbone("small_of_a_plugin", weights="none", size=64)
    samples, prepared = data.all_samples(), Preprocessing(64, 64)
    alone = extract_features(backbone, data, prepared, tmp_path / "alone", workers=0)
    with Engine(EngineOptions(jobs=2)) as engine:
        shared = extract_features(
            backbone, data, prepared, tmp_path / "shared", workers=0, engine=engine, plugin=str(plugin)
        )
    one, other = (store.features(samples, range(len(samples))) for store in (alone, shared))
    torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)
    assert next(backbone.parameters()).device.type == "cpu"


def test_training_end_to_end_takes_no_engine(trees: Path, tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match="--engine ray and --jobs only extract features, for --freeze or --probe"):
        train(trees, tmp_path / "run", cache=tmp_path, backbone="test_resnet", weights="none", size=64, engine="ray")

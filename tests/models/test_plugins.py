"""Backbones that a file of the user's registers with timm."""

from pathlib import Path

import pytest
import torch

import polycov
from polycov.models.backbones import Backbone, import_timm, load_plugin

PLUGIN = """
from timm.models import register_model
from torch import nn


@register_model
def NAME(pretrained=False, **options):
    return nn.Sequential(nn.Conv2d(3, 5, 5, stride=4), nn.BatchNorm2d(5), nn.ReLU())
"""


def write_plugin(folder: Path, name: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(PLUGIN.replace("NAME", name))
    return path


def test_a_registered_network_is_built_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(polycov.PolycovError, match="Unknown backbone 'my_net'"):
        polycov.create_model("my_net", num_classes=3)
    plugin = load_plugin(write_plugin(tmp_path, "my_net"))
    assert load_plugin(str(tmp_path / "my_net.py")) is plugin  # once, and without timm's warning of a duplicate
    model = polycov.create_model("my_net", pool="ipccp-cs", dim=8, channels=4, num_classes=3, size=41).eval()
    assert model.backbone.registered
    assert model.backbone.num_features == 5
    model.save_pretrained(tmp_path / "saved")
    again = polycov.Model.from_pretrained(tmp_path / "saved")
    x = torch.rand(2, 3, 41, 41)
    assert torch.equal(again(x), model(x))
    monkeypatch.delitem(import_timm().models._registry._model_entrypoints, "my_net")  # as in another process
    with pytest.raises(
        polycov.PolycovError,
        match=r"Unknown backbone 'my_net'\. .*import the file that registers it first \(load_plugin, or --plugin\)",
    ):
        polycov.Model.from_pretrained(tmp_path / "saved")


def test_files_of_one_name_in_two_folders_are_two_plugins(tmp_path: Path) -> None:
    for folder, name in (("a", "net_in_a"), ("b", "net_in_b")):
        (tmp_path / folder).mkdir()
        write_plugin(tmp_path / folder, name).rename(tmp_path / folder / "nets.py")
        load_plugin(tmp_path / folder / "nets.py")
    assert {Backbone(name, weights="none", size=41).num_features for name in ("net_in_a", "net_in_b")} == {5}


def test_a_module_is_a_plugin_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin(tmp_path, "net_of_a_module")
    monkeypatch.syspath_prepend(tmp_path)
    plugin = load_plugin("net_of_a_module")
    assert plugin is not None
    assert plugin.__name__ == "net_of_a_module"
    assert Backbone("net_of_a_module", weights="none", size=41).locations(41) == 100


def test_what_cannot_be_imported_ends_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(polycov.PolycovError, match=r"Cannot import the plugin '.*none\.py': FileNotFoundError"):
        load_plugin(tmp_path / "none.py")
    with pytest.raises(polycov.PolycovError, match="Cannot import the plugin 'no_such_module': ModuleNotFoundError"):
        load_plugin("no_such_module")
    broken = tmp_path / "broken.py"
    broken.write_text("raise KeyError('mine')")
    for _ in range(2):  # nothing half imported is left
        with pytest.raises(polycov.PolycovError, match=r"broken\.py': KeyError: 'mine'"):
            load_plugin(broken)
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(polycov.PolycovError, match=r"Expected a Python file, got 'text\.txt'"):
        load_plugin(tmp_path / "text.txt")


def test_a_resnet_by_name_without_its_last_stage_is_refused(tmp_path: Path) -> None:
    load_plugin(write_plugin(tmp_path, "resnet_of_mine"))
    with pytest.raises(polycov.PolycovError, match=r"'resnet_of_mine' cannot keep its resolution .* it has no layer4"):
        Backbone("resnet_of_mine", weights="none", size=41, last_stride=False)

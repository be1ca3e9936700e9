"""Every file that is kept says its format, and one of a newer version of polycov is refused with that sentence."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from PIL import Image

import polycov
from polycov.comparing.comparison_folder import ComparisonFolder
from polycov.data import feature_store
from polycov.data.channel_basis import ChannelBasis
from polycov.models.export import export_onnx
from polycov.models.onnx import METADATA_KEY, OnnxFile
from polycov.training import basis_file
from polycov.training.basis_file import BasisFile
from polycov.training.run_folder import RunFolder
from small_store import make_store, open_store

NEWER = "has format 99; expected [123]: a newer version of polycov wrote it. Update polycov to read it"


def of_json(path: Path, key: str = "format") -> None:
    """Raises the format in a JSON file."""
    values = json.loads(path.read_text())
    assert isinstance(values[key], int)
    path.write_text(json.dumps(values | {key: 99}))


def model(folder: Path) -> Callable[[], object]:
    made = polycov.create_model("test_resnet", pool="isqrt-cov", num_classes=2, channels=4, weights="none")
    made.classes = ["ash", "birch"]
    made.save_pretrained(folder)
    of_json(folder / "config.json")
    return lambda: polycov.Model.from_pretrained(folder)


def run(folder: Path) -> Callable[[], object]:
    model(folder)
    return lambda: RunFolder(folder).read_config()


def comparison(folder: Path) -> Callable[[], object]:
    ComparisonFolder(folder).open({"head": "probe"}, {})
    of_json(folder / "config.json")
    return lambda: polycov.load_comparison(folder)


def embedding(folder: Path) -> Callable[[], object]:
    Image.new("RGB", (64, 64), "red").save(folder / "red.png")
    options: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "size": 64, "device": "cpu"}
    embed = partial(polycov.embed, "isqrt-cov", folder / "red.png", out=folder / "out", **options)
    embed()
    of_json(folder / "out" / "_embedding.json", "format_version")
    return embed


def onnx_file(folder: Path) -> Callable[[], object]:
    path = folder / "pool.onnx"
    export_onnx(polycov.create_pool("bilinear", 3), path, torch.rand(2, 3, 4, 4))
    proto = onnx.load(path)
    (entry,) = (entry for entry in proto.metadata_props if entry.key == METADATA_KEY)
    entry.value = json.dumps(json.loads(entry.value) | {"format": 99})
    onnx.save(proto, path)
    return lambda: OnnxFile(path)


def basis(folder: Path) -> Callable[[], object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(basis_file, "FORMAT", 99)
        BasisFile(folder, {}).save(ChannelBasis(torch.zeros(4), torch.eye(4)[:2], 0.5))
    return BasisFile(folder, {}).load


@pytest.mark.filterwarnings("ignore")  # of the exporter
@pytest.mark.parametrize(
    "make",
    [model, run, comparison, embedding, pytest.param(onnx_file, marks=pytest.mark.slow), basis],
    ids=lambda make: make.__name__,
)
def test_a_newer_format_is_refused_with_a_sentence(
    tmp_path: Path, make: Callable[[Path], Callable[[], object]]
) -> None:
    with pytest.raises(polycov.PolycovError, match=NEWER):
        make(tmp_path)()


def test_features_of_a_newer_format_are_in_a_folder_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_store, "FORMAT_VERSION", 99)
    newer = make_store(tmp_path)
    monkeypatch.undo()
    assert open_store(tmp_path).folder != newer.folder
    assert len(open_store(tmp_path).missing()) > 0  # nothing is taken from it, and nothing of it is touched
    assert newer.missing() == []

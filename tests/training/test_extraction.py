from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polycov.data.images import ImageData
from polycov.data.read import read_data
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.models.backbones import Backbone
from polycov.models.head import Reduction
from polycov.models.model import create_model
from polycov.pooling.methods import create_pool
from polycov.progress import LogProgress
from polycov.training import extraction
from polycov.training.config import NetworkOptions
from polycov.training.extraction import LAST, Extraction, reduced_channels
from polycov.training.features import build_backbone, extract_features, stored_channels

PREPROCESSING = Preprocessing(64, 64)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return build_backbone(NetworkOptions("test_resnet", "none", 2), 64)


@pytest.fixture(scope="module")
def data(trees: Path) -> ImageData:
    return read_data(trees)


def test_reduced_features_are_those_of_the_backbone_within_the_basis(
    backbone: Backbone, data: ImageData, tmp_path: Path
) -> None:
    full = extract_features(backbone, data, PREPROCESSING, tmp_path, workers=0)
    reduced = extract_features(backbone, data, PREPROCESSING, tmp_path, channels=5, workers=0)
    assert (reduced.shape, reduced.channels) == (full.shape, full.channels)
    assert reduced.coordinates.shape == (5, *full.shape[1:])
    assert reduced.bytes_per_image * full.channels == full.bytes_per_image * 5
    assert reduced.basis is not None
    x = torch.cat([*full.batches(data["test"])])
    coordinates = torch.cat([*reduced.coordinates.batches(data["test"])])
    torch.testing.assert_close(coordinates, reduced.basis.encode(x), rtol=3e-3, atol=3e-3)
    decoded = torch.cat([*reduced.batches(data["test"])])
    torch.testing.assert_close(decoded, reduced.basis.decode(reduced.basis.encode(x)), rtol=3e-3, atol=3e-3)


def test_no_test_image_is_used_for_the_basis(backbone: Backbone, data: ImageData, tmp_path: Path) -> None:
    """Other test images leave it as it is; another split into train and val too."""
    basis = extract_features(backbone, data, PREPROCESSING, tmp_path / "a", channels=5, workers=0).basis
    fewer = replace(data, splits={**data.splits, "test": data["test"].select(range(2))})
    swapped = replace(data, splits={**data.splits, "train": data["val"], "val": data["train"]})
    for i, other in enumerate((fewer, swapped)):
        again = extract_features(backbone, other, PREPROCESSING, tmp_path / str(i), channels=5, workers=0).basis
        assert basis is not None
        assert again is not None
        assert basis.digest() == again.digest()
    moved = replace(data, splits={**data.splits, "train": data["test"], "test": data["train"]})
    other_basis = extract_features(backbone, moved, PREPROCESSING, tmp_path / "b", channels=5, workers=0).basis
    assert other_basis is not None
    assert basis is not None
    assert other_basis.digest() != basis.digest()


def test_first_order_features_come_from_all_channels_in_the_same_pass(
    backbone: Backbone, data: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, images = Backbone.forward, []

    def counted(self: Backbone, x: torch.Tensor) -> torch.Tensor:
        images.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(Backbone, "forward", counted)
    run = Extraction(backbone, data, PREPROCESSING, tmp_path, workers=0).run
    extracted = run(5, ["average", "gem(3)"])
    fitted = len(data["train"]) + len(data["val"])
    assert sum(images) == len(data.all_samples()) + fitted + 1  # one blank image, for the shape
    samples = data["test"]
    with torch.inference_mode():
        local = backbone.eval()(torch.stack([PREPROCESSING(samples.image(i)) for i in range(len(samples))]))
    for pool, store in extracted.vectors.items():
        expected = create_pool(pool, backbone.num_features)(local)
        torch.testing.assert_close(torch.cat([*store.batches(samples)])[:, 0], expected, rtol=3e-3, atol=3e-3)


def test_the_average_of_the_last_layer_comes_from_the_same_pass(
    data: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = NetworkOptions("test_efficientnet", "none", 1)
    backbone, complete = build_backbone(options, 64), build_backbone(replace(options, stage="last"), 64)
    plain = extract_features(backbone, data, PREPROCESSING, tmp_path / "plain", workers=0)
    samples = data["test"]
    with torch.inference_mode():
        images = torch.stack([PREPROCESSING(samples.image(i)) for i in range(len(samples))])
        expected = complete.eval()(images).mean((2, 3))
    monkeypatch.setattr(Backbone, "forward", _only_blank)
    extracted = Extraction(backbone, data, PREPROCESSING, tmp_path, complete, workers=0).run()
    monkeypatch.undo()
    last = torch.cat([*extracted.vectors[LAST].batches(samples)])[:, 0]
    torch.testing.assert_close(last, expected, rtol=3e-3, atol=3e-3)
    assert last.shape[1] == complete.num_features != backbone.num_features
    for one, other in zip(extracted.local.batches(samples), plain.batches(samples), strict=True):
        torch.testing.assert_close(one, other, rtol=3e-3, atol=3e-3)


def _only_blank(self: Backbone, images: torch.Tensor) -> torch.Tensor:
    assert not images.any(), "the images went through the network twice"
    (features,) = self.network.forward_intermediates(images, indices=[self.stage], intermediates_only=True)
    assert isinstance(features, torch.Tensor)
    return features


def test_a_further_pool_leaves_what_is_stored(backbone: Backbone, data: ImageData, tmp_path: Path) -> None:
    run = Extraction(backbone, data, PREPROCESSING, tmp_path, workers=0).run
    before = run(5)
    files = {path: path.stat().st_mtime_ns for path in before.local.folder.glob("shard-*")}
    after = run(5, ["average"])
    assert {path: path.stat().st_mtime_ns for path in after.local.folder.glob("shard-*")} == files
    assert after.vectors["average"].missing() == []


def test_a_lost_or_damaged_basis_is_fitted_again(backbone: Backbone, data: ImageData, tmp_path: Path) -> None:
    first = extract_features(backbone, data, PREPROCESSING, tmp_path, channels=5, workers=0)
    (file,) = tmp_path.glob("bases/*.safetensors")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    again = extract_features(backbone, data, PREPROCESSING, tmp_path, channels=5, workers=0)
    assert first.basis is not None
    assert again.basis is not None
    assert again.basis.digest() == first.basis.digest()  # on the same machine
    assert again.missing() == []


def test_it_says_what_is_stored_before_storing(backbone: Backbone, data: ImageData, tmp_path: Path) -> None:
    lines: list[str] = []
    run = Extraction(backbone, data, PREPROCESSING, tmp_path, workers=0, progress=LogProgress(lines.append)).run
    run(5, ["average"])
    (line,) = [line for line in lines if line.startswith("storing")]
    assert "5 principal components of " in line
    assert "outside the test split), and average, in float16:" in line
    assert "all channels would take" in line
    assert "(--store-channels 0)" in line
    lines.clear()
    run(5, ["average"])
    assert not [line for line in lines if line.startswith("storing")]


def test_large_features_are_reduced_and_small_ones_are_not(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    width = backbone.num_features
    assert reduced_channels(None, backbone.shapes(64).values(), 4) == 0
    monkeypatch.setattr(extraction, "LARGE", 1)
    monkeypatch.setattr(extraction, "STORED_CHANNELS", 6)
    assert reduced_channels(None, backbone.shapes(64).values(), 4) == 6
    assert reduced_channels(None, backbone.shapes(64).values(), 8) == 8
    assert reduced_channels(0, backbone.shapes(64).values(), 4) == 0
    assert reduced_channels(width, backbone.shapes(64).values(), 4) == 0
    with pytest.raises(PolycovError, match=r"at least 4, the channels before the pool; got 3\."):
        reduced_channels(3, backbone.shapes(64).values(), 4)
    cases: list[tuple[str, Reduction, int]] = [
        ("isqrt-cov", "linear", 6),
        ("isqrt-cov", "relu", 0),
        ("average", "linear", 0),
    ]
    for pool, reduction, expected in cases:
        model = create_model(
            "test_resnet", pool=pool, channels=4, reduction=reduction, weights="none", stage=2, size=64, num_classes=2
        )
        assert stored_channels(model) == expected


@pytest.mark.slow
def test_backends_share_a_cache_and_agree(backbone: Backbone, data: ImageData, tmp_path: Path) -> None:
    lines: list[str] = []
    options: dict[str, Any] = {"workers": 0, "batch_size": 5, "progress": LogProgress(lines.append)}
    torch_store = extract_features(backbone, data, PREPROCESSING, tmp_path / "a", backend="torch", **options)
    store = extract_features(backbone, data, PREPROCESSING, tmp_path / "b", backend="openvino", **options)
    assert [line for line in lines if line.startswith("backbone on openvino")]
    assert torch_store.folder.name == store.folder.name
    samples = data.all_samples()
    for one, other in zip(torch_store.batches(samples), store.batches(samples), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=1e-3)  # a step of float16
    (shard,) = store.folder.glob("shard-*")
    content = shard.read_bytes()
    shard.unlink()
    extract_features(backbone, data, PREPROCESSING, tmp_path / "b", backend="openvino", **options)
    assert shard.read_bytes() == content  # computed again, it is the same to the last bit
    lines.clear()
    extract_features(backbone, data, PREPROCESSING, tmp_path / "b", backend="torch", **options)
    assert not lines  # nothing is left to compute

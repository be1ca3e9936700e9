from pathlib import Path

import pytest
import torch

from polycov.data.read import read_data
from polycov.data.transforms import Preprocessing
from polycov.errors import NonFiniteError
from polycov.models.backbones import Backbone
from polycov.progress import LogProgress
from polycov.training.config import NetworkOptions
from polycov.training.features import build_backbone, extract_features


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return build_backbone(NetworkOptions("test_resnet", "none", 2), 64)


def test_random_weights_are_the_same_in_every_process_and_leave_the_global_state_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one = build_backbone(NetworkOptions("test_resnet", "none", 2), 64)
    assert torch.equal(torch.rand(1), expected)
    other = build_backbone(NetworkOptions("test_resnet", "none", 2), 64)
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_features_are_those_of_the_backbone(backbone: Backbone, trees: Path, tmp_path: Path) -> None:
    data, preprocessing = read_data(trees), Preprocessing(64, 64)
    backbone.train()
    store = extract_features(backbone, data, preprocessing, tmp_path, workers=0)
    assert backbone.training  # its mode is restored
    samples = data["val"]
    with torch.inference_mode():
        images = torch.stack([preprocessing(samples.image(i)) for i in range(len(samples))])
        expected = backbone.eval()(images)
    torch.testing.assert_close(store.features(samples, range(len(samples))), expected, rtol=2e-3, atol=2e-3)
    assert (store.channels, store.locations) == (backbone.num_features, backbone.locations(64))


def test_a_second_extraction_reads_and_another_size_computes(
    backbone: Backbone, trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read_data(trees)
    extract_features(backbone, data, Preprocessing(64, 64), tmp_path, workers=0)
    batches: list[int] = []
    forward = Backbone.forward

    def counted(self: Backbone, images: torch.Tensor) -> torch.Tensor:
        batches.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(Backbone, "forward", counted)
    lines: list[str] = []
    extract_features(backbone, data, Preprocessing(64, 64), tmp_path, workers=0, progress=LogProgress(lines.append))
    assert sum(batches) == 1  # one image of zeros, for the shape
    extract_features(backbone, data, Preprocessing(72, 72), tmp_path, workers=0)
    assert sum(batches) == 2 + len(data.all_samples())


def test_features_that_are_not_finite_are_named_and_not_stored(
    backbone: Backbone, trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read_data(trees)
    forward = Backbone.forward
    monkeypatch.setattr(Backbone, "forward", lambda self, images: forward(self, images) * 1e9)
    with pytest.raises(NonFiniteError, match=r"test/ash/\d+\.jpg"):
        extract_features(backbone, data, Preprocessing(64, 64), tmp_path, workers=0)
    monkeypatch.undo()
    store = extract_features(backbone, data, Preprocessing(64, 64), tmp_path, workers=0)
    assert bool(next(store.batches(data["train"])).isfinite().all())

from pathlib import Path

import pytest
import torch
from PIL import Image

from polycov.errors import PolycovError
from polycov.explaining import app_neighbours
from polycov.explaining.app_neighbours import TrainingImages
from polycov.training.run_folder import Run, load_run


@pytest.fixture
def run(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("POLYCOV_CACHE", str(finished.parent / "cache"))
    return load_run(finished)


def test_a_training_image_is_nearest_to_itself_and_the_others_follow_by_cosine(run: Run, trees: Path) -> None:
    training = TrainingImages.open(run, workers=0)
    names = [training.data["train"].name(i) for i in training.indices]
    images = torch.stack([run.preprocessing(Image.open(trees / name)) for name in names])
    with torch.no_grad():
        features = torch.nn.functional.normalize(run.model.embed(images).double())
    for i, found in enumerate(training.nearest(images[:3], count=4)):
        assert found[0].name == names[i]
        assert found[0].similarity == pytest.approx(1, abs=2e-3)
        assert found[0].image.shape == images.shape[1:]
        assert found[0].label in found[0].name
        expected = (features @ features[i]).sort(descending=True).values[:4].tolist()
        assert [neighbour.similarity for neighbour in found] == pytest.approx(expected, abs=2e-3)


def test_features_are_computed_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TrainingImages.open(run, workers=0)
    monkeypatch.setattr(app_neighbours, "_features", None)
    second = TrainingImages.open(run, workers=0)
    assert torch.equal(first.features, second.features)


def test_a_limit_keeps_all_classes(run: Run) -> None:
    training = TrainingImages.open(run, limit=6, workers=0)
    labels = [training.data["train"].labels[i] for i in training.indices]
    assert labels == [0, 0, 1, 1, 2, 2]
    assert len(training.features) == 6


def test_a_damaged_cache_is_computed_again(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYCOV_CACHE", str(tmp_path))
    first = TrainingImages.open(run, workers=0)
    (file,) = (tmp_path / "neighbours").iterdir()
    file.write_bytes(b"damaged")
    assert torch.equal(TrainingImages.open(run, workers=0).features, first.features)


def test_missing_data_is_an_error(run: Run, tmp_path: Path) -> None:
    moved = Run(run.folder, run.config.replace(data=str(tmp_path / "gone")), run.model, run.data)
    with pytest.raises(PolycovError, match="There is no folder"):
        TrainingImages.open(moved)

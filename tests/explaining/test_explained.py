from pathlib import Path

import pytest
import torch

from polycov.errors import PolycovError
from polycov.explaining.explained import explain_images
from polycov.explaining.training_images import TrainingImages
from polycov.models.model import Model
from polycov.training.run_folder import load_run


@pytest.fixture
def model(finished: Path) -> Model:
    return load_run(finished).model


def test_an_image_is_seen_from_three_sides(model: Model, trees: Path) -> None:
    files = sorted((trees / "test").rglob("*.jpg"))[:2]
    for file, item in zip(files, explain_images(model, files), strict=True):
        difference, one, other = item.views
        assert difference.name == one.name == other.name == str(file)
        assert (difference.target, difference.against) == (one.target, other.target)
        assert one.against is None
        torch.testing.assert_close(difference.regions, one.regions - other.regions, rtol=1e-3, atol=1e-4)
        assert difference.target == difference.probabilities[0][0]
        assert difference.against == difference.probabilities[1][0]
        assert list(item.neighbours) == []


def test_classes_names_and_neighbours_can_be_given(finished: Path, model: Model, trees: Path) -> None:
    config = load_run(finished).config
    training = TrainingImages.open(model, config, finished.parent / "cache", workers=0)
    files = sorted((trees / "test").rglob("*.jpg"))[:2]
    items = explain_images(
        model,
        files,
        classes=["ash", "birch"],
        against=["cedar", "ash"],
        names=["one", "two"],
        training=training,
        neighbours=2,
    )
    assert [item.views[0].question for item in items] == ["Why ash and not cedar?", "Why birch and not ash?"]
    assert [item.views[2].name for item in items] == ["one", "two"]
    assert [len(item.neighbours) for item in items] == [2, 2]
    (alone,) = explain_images(model, files[0], against=None)
    assert len(alone.views) == 1
    with pytest.raises(PolycovError, match="one of names per image, 2 in all, got 1"):
        explain_images(model, files, names=["one"])


def test_the_backbone_sees_each_image_once(model: Model, trees: Path) -> None:
    files, seen = sorted((trees / "test").rglob("*.jpg")), list[int]()
    model.backbone.register_forward_hook(lambda *call: seen.append(len(call[2])))
    items = explain_images(model, files)
    assert sum(seen) == len(files) == len(items) == 9
    assert len(seen) == 2  # batches

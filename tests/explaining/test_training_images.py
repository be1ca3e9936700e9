from pathlib import Path
from typing import Any

import pytest
import torch

from fake_images import make_image, write_data
from polycov.errors import PolycovError
from polycov.explaining.neighbour import Shares
from polycov.explaining.training_images import TrainingImages, training_images_of
from polycov.models.model import Model
from polycov.progress import LogProgress
from polycov.training.config import Config
from polycov.training.run_folder import load_run
from polycov.training.train import train

SMALL: dict[str, Any] = {
    "backbone": "test_resnet",
    "weights": "none",
    "stage": 2,
    "size": 64,
    "workers": 0,
    "channels": 4,
}


@pytest.fixture
def training(finished: Path) -> TrainingImages:
    run = load_run(finished)
    return TrainingImages.open(run.model, run.config, finished.parent / "cache", workers=0)


def test_the_nearest_neighbour_of_a_training_image_is_itself(training: TrainingImages) -> None:
    samples = training.data["train"]
    images = torch.stack([training.model.preprocessing(samples.image(i)) for i in range(len(samples))])
    found = training.nearest(images, 1)
    assert [near.name for (near,) in found] == [samples.name(i) for i in range(len(samples))]
    for (near,) in found:
        assert near.similarity == pytest.approx(1, abs=1e-3)
        assert near.label in near.name


def test_similarities_are_cosines_of_pooled_features_and_sums_over_regions(training: TrainingImages) -> None:
    model, samples = training.model, training.data["train"]
    image = model.preprocessing(make_image(1, 77))[None]
    (neighbours,) = training.nearest(image, len(samples) + 1)
    assert len(neighbours) == len(samples)
    others = torch.stack([model.preprocessing(samples.image(i)) for i in range(len(samples))])
    with torch.no_grad():
        cosines = torch.nn.functional.cosine_similarity(model.embed(image), model.embed(others))
    expected = {samples.name(i): float(cosines[i]) for i in range(len(samples))}
    assert {near.name for near in neighbours} == set(expected)
    values = [near.similarity for near in neighbours]
    assert values == pytest.approx(
        [expected[near.name] for near in neighbours], abs=3e-4
    )  # features are kept in float16
    assert values == pytest.approx(sorted(values, reverse=True), abs=1e-6)
    near = neighbours[0]
    assert near.grid == (8, 8)
    assert float(near.regions.sum()) == pytest.approx(near.similarity, abs=1e-3)
    (row, column), (own_row, own_column) = near.strongest
    assert float(near.pairs[row * 8 + column, own_row * 8 + own_column]) == float(near.pairs.max())
    assert near.image.shape == (3, 64, 64)


def test_a_limit_keeps_all_classes_and_says_so(finished: Path) -> None:
    run, lines = load_run(finished), list[str]()
    progress = LogProgress(lines.append)
    training = TrainingImages.open(
        run.model, run.config, finished.parent / "cache", limit=6, workers=0, progress=progress
    )
    assert training.data["train"].labels == [0, 0, 1, 1, 2, 2]
    assert lines == ["note: similar images are sought among 6 of 15 training images"]
    samples = training.data["train"]
    ((near,),) = training.nearest(run.preprocessing(samples.image(3))[None], 1)
    assert near.name == samples.name(3)


def test_what_images_share_is_computed_when_it_is_asked_for(
    training: TrainingImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, calls = TrainingImages._shares, list[None]()

    def counted(self: TrainingImages, image: torch.Tensor) -> Shares:
        calls.append(None)
        return shares(self, image)

    monkeypatch.setattr(TrainingImages, "_shares", counted)
    (neighbours,) = training.nearest(training.model.preprocessing(make_image(1, 77))[None], 3)
    assert not calls
    for near in neighbours:
        assert float(near.pairs.sum()) == pytest.approx(near.similarity, abs=1e-3)
    assert len(calls) == 1 + 3


def test_models_without_training_images_have_none(finished: Path, tmp_path: Path) -> None:
    run, lines = load_run(finished), list[str]()
    run.model.save_pretrained(tmp_path / "model")
    assert training_images_of(tmp_path / "model", run.model, LogProgress(lines.append)) is None
    assert "no similar training images for" in lines[-1]


def opened(model: Model, config: Config, cache: Path) -> int:
    """How many features were computed."""
    lines: list[str] = []
    TrainingImages.open(model, config, cache, workers=0, progress=LogProgress(lines.append, seconds=0.0))
    return sum("features of training images" in line for line in lines)


def test_features_are_cached_until_the_model_or_an_image_changes(tmp_path: Path) -> None:
    trees, cache = write_data(tmp_path / "trees", train=4, test=2), tmp_path / "cache"
    result = train(trees, tmp_path / "run", cache=cache, probe=True, pool="isqrt-cov", **SMALL)
    run = load_run(result.folder)
    assert opened(run.model, run.config, cache) > 0
    assert opened(run.model, run.config, cache) == 0
    with torch.no_grad():
        run.model.classifier.weight.zero_()
    assert opened(run.model, run.config, cache) == 0  # features do not depend on the classifier
    with torch.no_grad():
        run.model.reduction.weight.mul_(2)  # type: ignore[operator]
    assert opened(run.model, run.config, cache) > 0
    training = TrainingImages.open(run.model, run.config, cache, workers=0)
    make_image(2, 99).save(trees / training.data["train"].name(0))
    assert opened(run.model, run.config, cache) > 0


def test_a_trained_backbone_computes_features_from_images(tmp_path: Path) -> None:
    trees = write_data(tmp_path / "trees", train=4, test=2)
    result = train(trees, tmp_path / "run", cache=tmp_path / "cache", epochs=1, batch_size=4, dim=8, **SMALL)
    run = load_run(result.folder)
    training = TrainingImages.open(run.model, run.config, tmp_path / "cache", workers=0)
    image = run.preprocessing(training.data["train"].image(2))
    ((near,),) = training.nearest(image[None], 1)
    assert near.similarity == pytest.approx(1, abs=1e-3)
    assert len(list((tmp_path / "cache" / "features").iterdir())) == 1  # pooled features, and no local ones


def test_images_that_are_gone_are_an_error(finished: Path, tmp_path: Path) -> None:
    run = load_run(finished)
    with pytest.raises(PolycovError, match="There is no folder"):
        TrainingImages.open(run.model, run.config.replace(data=str(tmp_path / "nowhere")), tmp_path)

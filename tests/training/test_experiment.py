"""How a run adapts to its data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fake_images import write_data
from polycov.data.images import Samples
from polycov.data.loading import load_batches
from polycov.data.read import read_data
from polycov.errors import PolycovError
from polycov.models.model import Model
from polycov.progress import LogProgress
from polycov.training.config import Config
from polycov.training.ridge import STRENGTHS
from polycov.training.run_folder import RunFolder
from polycov.training.train import train


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "trees")


def config(trees: Path, **training: Any) -> Config:
    small: dict[str, Any] = {"size": 64, "workers": 0, "batch_size": 6, "channels": 16, "dim": 64}
    network: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "stage": 2, "pool": "ipccp-ts"}
    return Config(data=str(trees)).replace(**{**small, **network, **training})


@pytest.mark.parametrize(
    ("pool", "dim", "reduced"),
    [
        ("ipccp-fit", None, ("ipccp-fit", 24)),
        ("ipccp-fit", 512, ("ipccp-fit", 24)),
        ("average | project(40)", None, ("average | project(24)", None)),
    ],
)
def test_a_projection_is_reduced_to_the_training_images(
    trees: Path, tmp_path: Path, pool: str, dim: int | None, reduced: tuple[str, int | None]
) -> None:
    lines: list[str] = []
    chosen = config(trees, pool=pool, dim=dim, probe=True, channels=48)
    result = train(chosen, tmp_path / "run", cache=tmp_path / "cache", progress=LogProgress(lines.append))
    asked = 512 if pool == "ipccp-fit" else 40
    assert f"note: the feature has 24 dimensions, not {asked}: as many as there are training images" in lines
    assert result.load().pool.out_features == 24
    again = train(out=tmp_path / "run", resume=True)  # the configuration says what was trained
    assert again.test_accuracy == result.test_accuracy
    pooling = RunFolder(tmp_path / "run").read_config().pooling
    assert (pooling.pool, pooling.dim) == reduced


def test_a_smaller_projection_is_a_warning_where_nobody_listens(trees: Path, tmp_path: Path) -> None:
    chosen = config(trees, pool="ipccp-fit", dim=512, probe=True, channels=48)
    with pytest.warns(UserWarning, match="^the feature has 24 dimensions, not 512: as many as there are training im"):
        train(chosen, tmp_path / "run", cache=tmp_path / "cache")


def test_a_projection_that_is_fitted_already_is_not_reduced(tmp_path: Path) -> None:
    many, few = write_data(tmp_path / "many", train=12), write_data(tmp_path / "few", train=3)
    options: dict[str, Any] = {"pool": "ipccp-fit", "dim": 20, "epochs": 1, "freeze": True}
    train(config(many, **options), tmp_path / "first", cache=tmp_path / "cache")
    second = train(config(few, **options, init=tmp_path / "first"), tmp_path / "second", cache=tmp_path / "cache")
    assert second.load().pool.out_features == 20


def test_more_images_are_used_to_fit_a_large_projection_end_to_end(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polycov.training.experiment.IMAGES_TO_FIT", 10)
    result = train(config(trees, pool="ipccp-fit", dim=20, epochs=1), tmp_path / "run", cache=tmp_path / "cache")
    assert result.load().pool.out_features == 20


def test_a_probe_needs_validation_images(tmp_path: Path) -> None:
    data = write_data(tmp_path / "trees", train=1)
    with pytest.raises(PolycovError, match="There are no validation images in 'trees'"):
        train(config(data, probe=True), tmp_path / "run", cache=tmp_path / "cache")
    assert train(config(data, epochs=1), tmp_path / "other", cache=tmp_path / "cache").val_accuracy is None


def test_training_can_start_at_the_probe(trees: Path, tmp_path: Path) -> None:
    still: dict[str, Any] = {"lr": 1e-12, "epochs": 1, "freeze": True, "reduction": "linear", "start": "probe"}
    lines: list[str] = []
    chosen = config(trees, pool="isqrt-cov", dim=None, **still)
    result = train(chosen, tmp_path / "run", cache=tmp_path / "cache", progress=LogProgress(lines.append))
    assert f"start: a probe with validation accuracy {result.val_accuracy:.1%}" in lines

    # The classifier is scikit-learn's ridge on the training images alone, up to the scale of the logits.
    model, data = result.load(), read_data(str(trees), val_fraction=0.2)
    features = embed_all(model, data["train"]).double().numpy()
    targets = np.eye(3)[list(data["train"].labels)]
    unit = np.square(features - features.mean(0)).sum() / len(features)
    weight = model.classifier.weight.detach().double().numpy()
    angles = [cosine(Ridge(alpha=s * unit).fit(features, targets).coef_, weight) for s in STRENGTHS]
    assert max(angles) > 0.9999  # stored features are rounded to float16


def test_images_and_stored_features_start_at_the_same_probe(trees: Path, tmp_path: Path) -> None:
    starts = []
    for freeze in (True, False):
        lines: list[str] = []
        chosen = config(trees, pool="average", dim=None, start="probe", freeze=freeze, epochs=1)
        train(chosen, tmp_path / str(freeze), cache=tmp_path / "cache", progress=LogProgress(lines.append))
        starts += [line for line in lines if line.startswith("start: a probe with")]
    assert len(starts) == 2
    assert starts[0] == starts[1]


def embed_all(model: Model, samples: Samples) -> torch.Tensor:
    assert model.preprocessing is not None
    batches = load_batches(samples, model.preprocessing, [list(range(len(samples)))], 0)
    with torch.no_grad():
        return torch.cat([model.embed(images) for images, _, _ in batches])


def cosine(a: Any, b: Any) -> float:
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


def test_starting_at_the_probe_needs_validation_images(tmp_path: Path) -> None:
    data = write_data(tmp_path / "trees", train=1)
    with pytest.raises(PolycovError, match="There are no validation images in 'trees'"):
        train(config(data, start="probe"), tmp_path / "run", cache=tmp_path / "cache")

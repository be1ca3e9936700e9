"""How a run adapts to its data."""

from pathlib import Path
from typing import Any

import pytest

from fake_images import write_data
from polycov.errors import PolycovError
from polycov.progress import LogProgress
from polycov.training.config import Config
from polycov.training.run_folder import RunFolder
from polycov.training.train import train


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "trees")


def config(trees: Path, **training: Any) -> Config:
    small: dict[str, Any] = {"size": 64, "workers": 0, "batch_size": 6, "channels": 16, "dim": 64}
    network: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "stage": 2}
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

"""Whole runs from Python."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fake_images import write_data
from polycov.data import read_data
from polycov.data.images import Split
from polycov.data.loading import seed_from
from polycov.data.transforms import Preprocessing
from polycov.errors import NonFiniteError, PolycovError
from polycov.progress import LogProgress
from polycov.training.predictions import Predictions
from polycov.training.run_folder import RunFolder, load_run
from polycov.training.train import train
from small_runs import assert_same_weights, config, metrics


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "trees")


def test_parts_of_a_batch_add_up_to_the_batch(trees: Path, tmp_path: Path) -> None:
    losses = []
    for accumulate in (1, 3):
        options = config(trees, freeze=True, accumulate=accumulate, epochs=1, batch_size=24, seed=1)
        train(options.replace(reduction="linear"), tmp_path / str(accumulate), cache=tmp_path / "cache")
        losses.append(load_file(tmp_path / str(accumulate) / "model.safetensors"))
    for name in losses[0]:
        torch.testing.assert_close(losses[0][name], losses[1][name], rtol=1e-4, atol=1e-5)


def test_bfloat16_trains(trees: Path, tmp_path: Path) -> None:
    result = train(config(trees, precision="bf16", epochs=4, lr=0.1), tmp_path / "run", cache=tmp_path / "cache")
    assert result.metrics[3]["loss"] < result.metrics[0]["loss"]


def test_a_probe_answers_in_closed_form(trees: Path, tmp_path: Path) -> None:
    options = config(trees, probe=True, pool="isqrt-cov", dim=None, channels=None)
    result = train(options, tmp_path / "run", cache=tmp_path / "cache")
    (row,) = result.metrics
    assert row["test_accuracy"] == result.test_accuracy > 0.5
    assert result.val_accuracy is not None
    assert 0 <= result.val_accuracy <= 1
    assert result.interval[0] < result.test_accuracy <= result.interval[1]
    assert result.load().pool.spec == "covariance | sqrt(5) | triu"


def test_features_are_computed_once_and_again_when_anything_changes(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polycov.models.backbones import Backbone

    calls: list[int] = []
    forward = Backbone.forward

    def counted(self: Backbone, images: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(Backbone, "forward", counted)

    def images(name: str, **changes: Any) -> int:
        calls.clear()
        train(config(trees, probe=True, **changes), tmp_path / name, cache=tmp_path / "cache")
        return sum(n for n in calls if n > 1)

    assert images("a") == 42
    assert images("b") == 0
    assert images("c", split_seed=5) == 0  # the same images, split differently
    assert images("d", size=72) == 42
    assert len(list((tmp_path / "cache" / "features").iterdir())) == 2


def test_a_loss_that_is_not_finite_stops_with_names_and_keeps_the_checkpoint(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, options = tmp_path / "run", config(trees, epochs=3, lr=0.01, pool="monet-2-ts")
    plain = Preprocessing.augmented
    poisoned = seed_from(0, "augment", 1, 5)  # image 5 in the second epoch

    def augmented(self: Preprocessing, image: Image.Image, seed: int) -> torch.Tensor:
        return plain(self, image, seed) * (math.nan if seed == poisoned else 1)

    monkeypatch.setattr(Preprocessing, "augmented", augmented)
    name = read_data(str(trees))["train"].name(5)
    with pytest.raises(
        NonFiniteError, match=rf"The loss of step \d+ is not finite, for .*{name}.*last good checkpoint is in"
    ):
        train(options, folder, cache=tmp_path / "cache")
    assert metrics(folder)[0]["epoch"] == 1
    monkeypatch.undo()
    train(options, folder, resume=True, cache=tmp_path / "cache")  # resumes from there
    assert [row["epoch"] for row in metrics(folder)[:3]] == [1, 2, 3]


def test_optimizers_with_state_in_their_groups_resume_exactly(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polycov.training.loop import Trainer

    options = {"optimizer": "lamb", "epochs": 2, "freeze": True, "lr": 0.01}
    train(config(trees, **options), tmp_path / "whole", cache=tmp_path / "cache")
    end = Trainer._finish_epoch

    def stop(self: Trainer) -> Any:
        end(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_finish_epoch", stop)
    with pytest.raises(KeyboardInterrupt, match=r"^Resume with: polycov train --resume .*stopped$"):
        train(config(trees, **options), tmp_path / "stopped", cache=tmp_path / "cache")
    monkeypatch.undo()
    other = config(trees, **{**options, "optimizer": "adamw"})
    with pytest.raises(PolycovError, match="its optimizer was 'lamb'"):
        train(other, tmp_path / "stopped", resume=True, cache=tmp_path / "cache")
    train(config(trees, **options), tmp_path / "stopped", resume=True, cache=tmp_path / "cache")
    assert_same_weights(tmp_path / "whole", tmp_path / "stopped")


def test_a_damaged_cache_is_recomputed(trees: Path, tmp_path: Path) -> None:
    train(config(trees, probe=True), tmp_path / "first", cache=tmp_path / "cache")
    shard = max((tmp_path / "cache" / "features").rglob("*"), key=lambda path: path.stat().st_size)
    shard.write_bytes(shard.read_bytes()[:1000])
    train(config(trees, probe=True), tmp_path / "second", cache=tmp_path / "cache")
    assert_same_weights(tmp_path / "first", tmp_path / "second")


def test_the_validation_accuracy_is_that_of_the_weights_that_are_kept(trees: Path, tmp_path: Path) -> None:
    options = config(trees, epochs=4, lr=0.3, keep="last", freeze=True)
    result = train(options, tmp_path / "run", cache=tmp_path / "cache")
    last = [row for row in result.metrics if "loss" in row][-1]
    assert result.val_accuracy == last["val_accuracy"]
    assert result.metrics[-1]["epoch"] == 4


@pytest.mark.parametrize(
    ("accuracies", "losses", "kept"), [([0.5, 0.75, 0.75], [3, 2, 1], 3), ([0.5, 0.75, 0.75], [1, 2, 3], 2)]
)
def test_between_equal_epochs_the_loss_on_validation_decides(
    trees: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    accuracies: list[float],
    losses: list[float],
    kept: int,
) -> None:
    from polycov.training.loop import Trainer

    plain, lines = Trainer.predict, list[str]()
    remaining = iter(zip(accuracies, losses, strict=True))

    def predict(self: Trainer, split: Split) -> Predictions:
        predictions = plain(self, split)
        if split == "test" or self.state["epoch"] == 3:
            return predictions
        accuracy, loss = next(remaining)
        labels = torch.zeros(4, dtype=torch.long)
        top = (torch.arange(4) >= 4 * accuracy).long()[:, None]
        return Predictions(top, torch.ones(4, 1), torch.full((4,), float(loss)), labels)

    monkeypatch.setattr(Trainer, "predict", predict)
    options = config(trees, epochs=3, freeze=True)
    result = train(options, tmp_path / "run", cache=tmp_path / "cache", progress=LogProgress(lines.append))
    assert result.metrics[-1]["epoch"] == kept
    assert f"kept: epoch {kept}, the best on validation (75.0%)" in lines


def test_a_run_that_cannot_start_leaves_no_folder(trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolycovError, match="There is no folder 'nowhere'"):
        train("nowhere", cache=tmp_path / "cache")
    assert not (tmp_path / "runs").exists()
    with pytest.raises(PolycovError, match="Unknown optimizer"):
        train(config(trees, optimizer="sgdd"), cache=tmp_path / "cache")
    assert not list((tmp_path / "runs").iterdir())
    with pytest.raises(PolycovError, match="Expected out, the folder of the run to resume"):
        train("nowhere", resume=True)


def test_a_run_that_another_process_works_on_is_left_alone(trees: Path, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    with folder.lock(), pytest.raises(PolycovError, match="Another process is working on"):
        train(config(trees, probe=True), folder.path, cache=tmp_path / "cache")


def test_a_failed_start_does_not_occupy_its_folder(trees: Path, tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match="Unknown optimizer"):
        train(config(trees, optimizer="sgdd"), tmp_path / "run", cache=tmp_path / "cache")
    train(config(trees, probe=True), str(tmp_path / "run"), cache=tmp_path / "cache")


def test_a_validation_loss_that_is_not_finite_stops_before_the_checkpoint(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Preprocessing.__call__
    monkeypatch.setattr(Preprocessing, "__call__", lambda self, image: plain(self, image) * math.nan)
    with pytest.raises(NonFiniteError, match="The validation loss after epoch 1 is not finite, for train/"):
        train(config(trees), tmp_path / "run", cache=tmp_path / "cache")
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_a_run_starts_with_the_weights_of_another(trees: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    train(config(trees, freeze=True), first, cache=tmp_path / "cache")
    options = config(trees, init=first, epochs=1, lr=1e-9, backbone_lr=0.0, weight_decay=0.0)
    train(options, second, cache=tmp_path / "cache")
    one, other = (load_file(folder / "model.safetensors") for folder in (first, second))
    torch.testing.assert_close(one["classifier.weight"], other["classifier.weight"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"optimizer": "sgdd"}, "Unknown optimizer 'sgdd'. .*Did you mean"),
        ({"batch_size": 7, "accumulate": 2}, "multiple of 1 processes × 2 parts, got 7"),
        ({"freeze": True, "mirror": True}, "--mirror needs images"),
        ({"init": Path("nowhere")}, "There is no run 'nowhere'"),
        ({"optimizer": "adahessian"}, "needs second derivatives"),
        ({"optimizer": "fusedadam"}, "is not available here"),
        ({"keep": "foo"}, "Option 'training.keep' in the options should be 'best' or 'last'"),
        ({"seed": 2**70}, "Expected seed from 0"),
    ],
)
def test_impossible_runs(trees: Path, tmp_path: Path, training: dict[str, Any], message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        train(config(trees, **training), tmp_path / "run", cache=tmp_path / "cache")


def test_a_run_is_not_written_over_and_resumes_only_as_it_was(trees: Path, tmp_path: Path) -> None:
    folder = train(config(trees, probe=True), tmp_path / "run", cache=tmp_path / "cache").folder
    with pytest.raises(PolycovError, match=r"There is already a run in"):
        train(config(trees, probe=True), folder, cache=tmp_path / "cache")
    (folder / "model.safetensors").unlink()
    with pytest.raises(PolycovError, match=r"is not finished\. Resume it with: polycov train --resume"):
        load_run(folder)
    with pytest.raises(PolycovError, match=r"Cannot resume .*: its model was seed 0, now 1"):
        train(config(trees, probe=True, seed=1), folder, resume=True, cache=tmp_path / "cache")
    with pytest.raises(PolycovError, match="There is no run to resume"):
        train(config(trees), tmp_path / "none", resume=True, cache=tmp_path / "cache")

import shutil
from pathlib import Path

import pytest
import torch

from polycov.data.read import read_data
from polycov.errors import PolycovError
from polycov.training.run_folder import RunFolder, load_run
from polycov.training.train import train


def test_new_folders_never_coincide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [RunFolder.create("birds").path.name for _ in range(3)] == ["birds-1", "birds-2", "birds-3"]


def test_one_process_at_a_time_and_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.safetensors.0a1b2c3d4e5f.tmp").write_text("half")
    folder = RunFolder(tmp_path)
    with folder.lock():
        assert not list(tmp_path.glob(".*safetensors*"))
        with pytest.raises(PolycovError, match="Another process is working on the run"), RunFolder(tmp_path).lock():
            pass
    with RunFolder(tmp_path).lock():
        pass
    assert not list(tmp_path.iterdir())


def test_metrics_after_a_checkpoint_are_dropped(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for epoch in (1, 2, 3):
        folder.append_metrics({"epoch": epoch, "loss": 1 / epoch})
    tested = {"epoch": 3, "test_accuracy": 0.5, "low": 0.4, "high": 0.6, "images": 9}
    folder.append_metrics(tested)
    assert folder.test_metrics() == tested
    folder.keep_metrics(up_to_epoch=2)
    assert [row["epoch"] for row in folder.metrics()] == [1, 2]
    assert folder.test_metrics() is None


def test_a_finished_run_loads_and_others_say_what_they_are(finished: Path, trees: Path, tmp_path: Path) -> None:
    run = load_run(finished)
    assert run.classes == ["ash", "birch", "cedar"]
    assert run.config.training.probe
    assert run.data["images"] == {"train": 15, "val": 3, "test": 9}
    assert RunFolder(finished).finished
    assert [*RunFolder(finished).predictions()] == ["test"]
    assert len(RunFolder(finished).predictions()["test"]) == 9
    losses = RunFolder(finished).test_loss()
    test = read_data(str(trees))["test"]
    logits = run.model(torch.stack([run.model.preprocessing(test.image(i)) for i in range(9)]))
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(test.labels), reduction="none")
    torch.testing.assert_close(torch.tensor(losses), expected.detach(), atol=1e-2, rtol=0)
    with pytest.raises(PolycovError, match="There is no run 'nowhere'"):
        load_run("nowhere")
    with pytest.raises(PolycovError, match="is neither a run nor a model"):
        load_run(trees)
    run.model.save_pretrained(tmp_path / "model")
    with pytest.raises(PolycovError, match="is a model, not a training run"):
        load_run(tmp_path / "model")


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one, other = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "other")
    for folder in (one, other):
        folder.write_description({"config": {}})
    assert one.identity != other.identity
    one.write_description({"config": {"changed": True}})
    position = {"epoch": 2, "step": 0, "sums": [0.5, 1.0, 2.0], "best": None, "seconds": 0.0}
    one.save_checkpoint(model, optimizer, position)  # type: ignore[arg-type]
    one.save_best(model, 1)  # type: ignore[arg-type]
    assert one.load_checkpoint(model, optimizer) == position  # type: ignore[arg-type]
    one.load_best(model)  # type: ignore[arg-type]
    for name in ("checkpoint.safetensors", "best.safetensors"):
        (one.path / name).rename(other.path / name)
    with pytest.raises(PolycovError, match=r"^'.*checkpoint.safetensors' belongs to another run\. "):
        other.load_checkpoint(model, optimizer)  # type: ignore[arg-type]
    with pytest.raises(PolycovError, match=r"^'.*best.safetensors' belongs to another run\. "):
        other.load_best(model)  # type: ignore[arg-type]


def test_a_finished_run_is_tidied_when_a_kill_came_before_its_checkpoints_were_removed(
    finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    for name in ("checkpoint.safetensors", "best.safetensors", "run.lock"):
        (run / name).touch()
    train(out=run, resume=True)
    assert {path.name for path in run.iterdir()} == {path.name for path in finished.iterdir()}

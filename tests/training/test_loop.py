"""Interruptions of training. Kills, which leave no time for anything, are in tests/kills."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from polycov.models.tensors import load_tensors
from polycov.progress import Progress, Task
from polycov.training.run_folder import RunFolder
from polycov.training.train import train

SMALL: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "stage": 2, "size": 64, "workers": 0}
SMALL |= {"epochs": 2, "batch_size": 5, "dim": 16, "channels": 8}


class Stopping(Progress):
    """Sends this process a signal when so many steps are done."""

    def __init__(self, step: int) -> None:
        self.step = step

    def task(self, description: str, total: int) -> Task:
        return _StoppingTask(description, total, self.step if description == "training" else -1)


class _StoppingTask(Task):
    def __init__(self, description: str, total: int, step: int) -> None:
        super().__init__(description, total)
        self._step = step

    def update(self, completed: int, status: str = "") -> None:
        super().update(completed, status)
        if completed == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "model.safetensors")[0]


def check_resumed(folder: Path, whole: Path) -> None:
    train(out=folder, resume=True)
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(folder).items())
    rows = [RunFolder(path).metrics() for path in (folder, whole)]
    assert [row["loss"] for row in rows[0][:2]] == [row["loss"] for row in rows[1][:2]]


@pytest.mark.parametrize("step", [1, 3, 4])
def test_an_interruption_between_steps_saves_the_last_one(trees: Path, tmp_path: Path, step: int) -> None:
    train(trees, tmp_path / "whole", **SMALL)
    run = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt, match="Resume with: polycov train --resume"):
        train(trees, run, progress=Stopping(step), **SMALL)
    progress = load_tensors(run / "checkpoint.safetensors")[1]["progress"]
    assert 3 * progress["epoch"] + progress["step"] == step
    check_resumed(run, tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_within_a_step_leaves_nothing_of_it(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    train(trees, tmp_path / "whole", **SMALL)
    calls, real = 0, functional.cross_entropy

    def interrupted(*arguments: Any, **options: Any) -> Any:  # after the forward pass, which updates batch norm
        nonlocal calls
        calls += options.get("reduction") == "none"
        if calls == 2:
            os.kill(os.getpid(), number)
        return real(*arguments, **options)

    run = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(functional, "cross_entropy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(trees, run, **SMALL)
    progress = load_tensors(run / "checkpoint.safetensors")[1]["progress"]
    assert (progress["epoch"], progress["step"]) == (0, 1)
    check_resumed(run, tmp_path / "whole")

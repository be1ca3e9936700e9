"""Whole runs, as a user starts them: real processes, killed and resumed, one and two of them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_images import write_data
from polycov.training.run_folder import load_run
from small_runs import assert_same_weights, metrics

SMALL = ["--backbone", "test_resnet", "--weights", "none", "--size", "64", "--stage", "2", "--channels", "16"]
SMALL += ["--dim", "64", "--batch-size", "6", "--workers", "0"]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "trees")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "POLYCOV_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "polycov", *map(str, arguments)]


def run(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_a_tiny_run_learns_and_can_be_used(trees: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "run"
    out = run(environment, "train", trees, *SMALL, "--epochs", "6", "--lr", "0.1", "--out", folder).stdout
    assert "test accuracy" in out
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == [
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "predictions.json",
    ]
    rows = metrics(folder)
    assert [row["epoch"] for row in rows[:6]] == [1, 2, 3, 4, 5, 6]
    assert rows[5]["loss"] < rows[0]["loss"]
    assert rows[-1]["test_accuracy"] >= 0.5  # stripes of three directions: chance is a third
    assert rows[-1]["val_accuracy"] == max(row["val_accuracy"] for row in rows[:6])  # chosen on validation
    description = json.loads((folder / "config.json").read_text())
    assert description["classes"] == ["ash", "birch", "cedar"]
    assert description["data"]["images"] == {"train": 24, "val": 6, "test": 12}

    loaded = load_run(folder)
    assert not loaded.model.training
    shown = run(environment, "predict", folder, trees / "test" / "ash").stdout
    assert shown.count("%") == 3 * 4
    shown = run(environment, "evaluate", folder, "--workers", "0").stdout
    assert f"accuracy {rows[-1]['test_accuracy']:.2%}" in shown
    evaluation = json.loads((folder / "evaluation" / "evaluation.json").read_text())
    assert evaluation["accuracy"] == rows[-1]["test_accuracy"]
    assert sum(row["images"] for row in evaluation["classes"]) == 12
    predictions = (folder / "evaluation" / "predictions.csv").read_text().splitlines()
    assert len(predictions) == 13
    confusion = [line.split(",")[1:] for line in (folder / "evaluation" / "confusion.csv").read_text().splitlines()[1:]]
    assert sum(int(cell) for row in confusion for cell in row) == 12
    right = sum(int(confusion[i][i]) for i in range(3))
    assert right == round(12 * evaluation["accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["end to end", "frozen"])
def test_a_killed_run_resumes_to_the_same_weights(
    trees: Path, tmp_path: Path, environment: dict[str, str], kind: str
) -> None:
    options: list[str | Path] = [trees, *SMALL, "--epochs", "8", "--checkpoint-minutes", "0.00001", "--crop", "random"]
    options += ["--resize", "72", *(["--freeze"] if kind == "frozen" else [])]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(environment, "train", *options, "--out", whole)
    for rounds in (1, 4):  # killed twice
        first: list[str | Path] = ["--out", broken] if rounds == 1 else ["--resume", broken]
        process = subprocess.Popen(command("train", *(options if rounds == 1 else []), *first), env=environment)
        deadline = time.monotonic() + 120
        while len(metrics(broken)) < rounds and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (broken / "model.safetensors").exists()  # it was really stopped
    run(environment, "train", "--resume", broken)
    assert_same_weights(whole, broken)
    timeless = [{k: v for k, v in row.items() if k != "images_per_second"} for row in metrics(whole)]
    assert timeless == [{k: v for k, v in row.items() if k != "images_per_second"} for row in metrics(broken)]
    assert "already finished: test accuracy" in run(environment, "train", "--resume", broken).stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["end to end", "frozen"])
def test_two_processes_compute_what_one_does(
    trees: Path, tmp_path: Path, environment: dict[str, str], kind: str
) -> None:
    # Small steps: rounding differs, since sums are made in another order, and a large rate makes much of it.
    options: list[str | Path] = ["train", trees, *SMALL, "--epochs", "3", "--lr", "0.005", "--backbone-lr", "0.001"]
    options += ["--freeze"] if kind == "frozen" else []
    run(environment, *options, "--out", tmp_path / "one")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]
    arguments = [*launcher, "polycov", *map(str, options), "--out", str(tmp_path / "two")]
    environment = {**environment, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert len(one) == len(two) == 4
    assert [row["processes"] for row in two[:3]] == [2, 2, 2]
    for a, b in zip(one[:3], two[:3], strict=True):
        for name in ("loss", "val_loss"):
            assert a[name] == pytest.approx(b[name], rel=1e-3), name
    assert two[-1]["images"] == 12  # each once


@pytest.mark.slow
def test_two_processes_end_in_one_sentence_each_over_unreadable_images(
    trees: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    write_data(tmp_path / "trees")
    (tmp_path / "trees" / "train" / "ash" / "text.jpg").write_text("not an image")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "polycov"]
    arguments = [*launcher, "train", str(tmp_path / "trees"), *SMALL, "--out", str(tmp_path / "run")]
    environment = {**environment, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "1 of 43 images is unreadable: train/ash/text.jpg" in done.stderr
    assert "PolycovError" not in done.stderr  # no traceback of ours

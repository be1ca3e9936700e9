"""The commands that are killed, on images and a network so small that each takes a second of work."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_images import write_data
from polycov.models.tensors import load_tensors

NETWORK = ["--backbone", "test_resnet", "--weights", "none", "--stage", "2", "--size", "64", "--workers", "0"]
POOL = ["--pool", "ipccp-ts", "--dim", "32", "--channels", "8"]
EVERY_STEP = ["--checkpoint-minutes", "0.00001"]
TRAIN = [*NETWORK, *POOL, *EVERY_STEP, "--epochs", "2", "--batch-size", "8"]
COMPARE = [*NETWORK, "--methods", "average", "ipccp-ts", "--dims", "16", "--channels", "8", "--seeds", "2"]
SHARDS = ["--shard-size", "7", "--batch-size", "4"]
# What differs between two runs that nothing disturbed: times, and the random name of a run.
VOLATILE = {"run", "seconds", "pool_ms", "images_per_second", "digest"}
PAGES = (".html", ".svg", ".png", ".pdf", ".tex", ".csv")


@dataclass(frozen=True)
class Task:
    """A command that can be killed and started again.

    Attributes:
        name: of the task.
        first: its arguments; STAGE stands for the folder of what all tasks read, WORK for the folder of this one.
        resumed: arguments that resume a run; empty if the same command does.
        before: what is in the folder before the command starts, from the stage.
        kept: a file in the folder that is complete at any moment, if it exists.
    """

    name: str
    first: tuple[str, ...]
    resumed: tuple[str, ...] = ()
    before: str = ""
    kept: str = ""


def _task(name: str, *arguments: str, **options: Any) -> Task:
    return Task(name, arguments, **options)


RESUME = ("train", "--resume", "WORK/run", "--cache", "WORK/cache")
TRAIN_TO = ("--out", "WORK/run", "--cache", "WORK/cache")
TASKS = {
    task.name: task
    for task in (
        _task("train", "train", "STAGE/trees", *TRAIN, *TRAIN_TO, resumed=RESUME),
        _task("train frozen", "train", "STAGE/trees", *TRAIN, "--freeze", *TRAIN_TO, resumed=RESUME),
        _task("extraction", "train", "STAGE/trees", *NETWORK, *POOL, "--probe", *TRAIN_TO, resumed=RESUME),
        _task("compare", "compare", "STAGE/trees", *COMPARE, "--out", "WORK/comparison", "--cache", "WORK/cache"),
        _task("embed RUN", "embed", "STAGE/run", "STAGE/trees", *SHARDS, "--workers", "0", "--out", "WORK/features"),
        _task("embed METHOD", "embed", "ipccp-ts", "STAGE/trees", "--dim", "32", *NETWORK, *SHARDS, "--out", "WORK/f"),
        _task("export", "export", "STAGE/run", "--out", "WORK/model", before="other"),
        _task("export ONNX", "export", "STAGE/run", "--out", "WORK/model.onnx"),
        _task("predict", "predict", "STAGE/run", "STAGE/trees", "--out", "WORK/p.csv", before="csv", kept="p.csv"),
    )
}


class Stage:
    """A folder in which tasks are run, one after another.

    Args:
        folder: an empty folder, to `fill`.

    Attributes:
        work: folder of the task that runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.work = folder, folder / "work"

    def fill(self, run: Callable[[list[str]], object]) -> None:
        """Makes images, finished runs and what tasks find when they start, with a function that runs commands."""
        write_data(self.folder / "trees", train=10, test=4)
        for name, seed in (("run", "0"), ("another", "1")):
            options = ("--probe", "--seed", seed, "--cache", "STAGE/cache", "--out", f"STAGE/{name}")
            run(self.arguments(("train", "STAGE/trees", *NETWORK, *POOL, *options)))
        run(self.arguments(("export", "STAGE/another", "--out", "STAGE/other/model")))
        (self.folder / "csv").mkdir()
        (self.folder / "csv" / "p.csv").write_text("an earlier file, complete\n")

    def arguments(self, arguments: tuple[str, ...]) -> list[str]:
        """Returns the arguments of a command with the folders of this stage."""
        texts = (text.replace("WORK", str(self.work)) for text in arguments)
        return [text.replace("STAGE", str(self.folder)) for text in texts]

    def clear(self, task: Task) -> None:
        """Leaves in the folder of a task what it finds when it starts."""
        shutil.rmtree(self.work, ignore_errors=True)
        if task.before:
            shutil.copytree(self.folder / task.before, self.work)
        else:
            self.work.mkdir()

    def resume(self, task: Task) -> list[str]:
        """Returns the arguments that resume a task, or start it where it had not begun."""
        begun = bool(task.resumed) and (self.work / "run" / "config.json").is_file()
        return self.arguments(task.resumed if begun else task.first)

    def leftovers(self) -> list[str]:
        """Returns the temporary files and locks in the folder of the task."""
        paths = (path for path in self.work.rglob("*") if path.suffix == ".tmp" or "lock" in path.name)
        return sorted(str(path.relative_to(self.work)) for path in paths)

    def result(self) -> dict[str, Any]:
        """Returns what a task wrote, by file: content without times and random names. Pages, which show times, and
        logs of TensorBoard only have to be there.
        """
        files = (path for path in self.work.rglob("*") if path.is_file())
        paths = sorted(path for path in files if "tensorboard" not in path.parts)
        return {str(path.relative_to(self.work)): _content(path) for path in paths}


def command(arguments: list[str]) -> list[str]:
    """Returns a command of polycov in a fresh interpreter."""
    return [sys.executable, "-m", "polycov", *arguments]


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        tensors, notes = load_tensors(path)
        return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, _lasting(notes)
    if path.suffix in (".json", ".jsonl"):
        return list(_values(path))
    return "a page" if path.suffix in PAGES and path.name != "p.csv" else path.read_bytes()


def _values(path: Path) -> Iterator[Any]:
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    for value in text.splitlines() if path.suffix == ".jsonl" else [text]:
        yield _lasting(json.loads(value))


def _lasting(value: Any) -> Any:
    """A value of JSON without times and random names."""
    if isinstance(value, dict):
        return {key: _lasting(inner) for key, inner in value.items() if key not in VOLATILE}
    return [_lasting(inner) for inner in value] if isinstance(value, list) else value

"""The folder of a training run: what was asked for, what was measured, and the model, which can be rebuilt from it."""

import itertools
import math
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from polycov.data.images import ImageData
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.models.model import Model
from polycov.models.model_folder import ModelFolder
from polycov.models.tensors import save_tensors
from polycov.models.weights import load_exactly
from polycov.system.files import is_there, remove_temporary_files, write_file
from polycov.system.json_files import append_json_lines, read_json_lines, read_object, write_json, write_json_lines
from polycov.system.locks import try_lock
from polycov.system.structure import structure
from polycov.training.checkpoint import load_checkpoint, load_of_run, save_checkpoint
from polycov.training.config import Config
from polycov.training.run_values import TESTED, Position, Predicted, Tested


@dataclass(frozen=True)
class Run:
    """A trained classifier with everything needed to use it.

    Attributes:
        folder: folder of the run.
        config: configuration of the run.
        model: trained, in evaluation mode.
        data: name, fingerprint and image counts of the data it was trained on.
    """

    folder: Path
    config: Config
    model: Model
    data: dict[str, Any]

    @property
    def classes(self) -> list[str]:
        """The class names."""
        return self.model.classes

    @property
    def preprocessing(self) -> Preprocessing:
        """How images are prepared."""
        return self.model.preprocessing


class RunFolder:
    """The files of a run. A finished run is a model folder too: its weights are written last.

    ``config.json`` describes the run, ``metrics.jsonl`` has a line per epoch and one for the test at the end,
    ``predictions.json`` the predicted classes and the losses of the test images, ``checkpoint.safetensors`` and
    ``best.safetensors`` exist while the run is not finished, and ``model.safetensors`` once it is.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.model_folder = ModelFolder(self.path)
        self._checkpoint = self.path / "checkpoint.safetensors"
        self._best = self.path / "best.safetensors"
        self._metrics = self.path / "metrics.jsonl"
        self._lock = self.path / "run.lock"
        self._predictions = self.path / "predictions.json"

    @classmethod
    def create(cls, stem: str) -> "RunFolder":
        """Makes a new folder in ``runs``; two processes never get the same one."""
        for index in itertools.count(1):
            path = Path("runs") / f"{stem}-{index}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            return cls(path)
        raise AssertionError  # not reached

    # What is there

    @property
    def exists(self) -> bool:
        """Whether a run has begun here."""
        return self.has_config or self.has_checkpoint

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return self.has_config and self.model_folder.is_finished

    @property
    def has_config(self) -> bool:
        """Whether the run is described."""
        return self.model_folder.config.is_file()

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return is_there(self._checkpoint)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the lock of the run, and removes what a killed process left half-written.

        Raises:
            PolycovError: if another process holds it.
        """
        with try_lock(self._lock) as acquired:
            if not acquired:
                raise PolycovError(f"Another process is working on the run {str(self.path)!r}.")
            remove_temporary_files(self.path)
            yield

    # Description

    def read_config(self) -> Config:
        """Reads the configuration of the run.

        Raises:
            PolycovError: if the folder is not a run.
        """
        description = self.read_description()
        if "config" not in description:
            raise PolycovError(f"{str(self.path)!r} is a model, not a training run: its config.json has no 'config'.")
        return structure(Config, description["config"], f"the config.json of {str(self.path)!r}")

    def read_description(self) -> dict[str, Any]:
        """Reads ``config.json``."""
        return self.model_folder.read_description()

    def write_description(self, description: dict[str, Any]) -> None:
        """Writes ``config.json``, with the identity that the files of this run carry."""
        self.model_folder.write_description(description | {"run": self.identity or uuid.uuid4().hex})

    @property
    def identity(self) -> str | None:
        """What tells this run from every other; None before it is described."""
        return self.read_description().get("run") if self.has_config else None

    # Progress

    def save_checkpoint(self, model: Model, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Writes a checkpoint."""
        save_checkpoint(self._checkpoint, model, optimizer, state, self.identity)

    def load_checkpoint(self, model: Model, optimizer: Optimizer) -> dict[str, Any]:
        """Restores the checkpoint, and returns the state of the training.

        Raises:
            PolycovError: if the checkpoint is damaged, belongs to another run, or does not fit.
        """
        state = load_checkpoint(self._checkpoint, model, optimizer, self.identity)
        structure(Position, state, f"the checkpoint {str(self._checkpoint)!r}")
        return state

    def save_best(self, model: Model, epoch: int) -> None:
        """Keeps the best weights so far."""
        save_tensors(self._best, model.state_dict(), {"epoch": epoch, "run": self.identity})

    def load_best(self, model: Model) -> None:
        """Loads the best weights."""
        load_exactly(model, load_of_run(self._best, self.identity)[0], f"The file {self._best.name!r}")

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the metrics: a row per epoch, and one for the test once the run is finished.

        Raises:
            PolycovError: if the file is damaged.
        """
        rows = list(read_json_lines(self._metrics))
        for line, row in enumerate(rows, 1):
            if "test_accuracy" not in row and not isinstance(row.get("epoch"), int):
                where = f"line {line} of {str(self._metrics)!r}"
                raise PolycovError(f"Expected the number of an epoch in {where}, got {row.get('epoch')!r}.")
        return rows

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Appends the metrics of an epoch."""
        append_json_lines(self._metrics, [row])

    def keep_metrics(self, up_to_epoch: float = math.inf) -> None:
        """Drops the metrics of later epochs, and those of the test."""
        rows = [row for row in self.metrics() if "test_accuracy" not in row]
        write_json_lines(self._metrics, [row for row in rows if row.get("epoch", math.inf) <= up_to_epoch])

    def tensorboard(self) -> Any:
        """Returns a writer for TensorBoard, or None if that is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(self.path / "tensorboard"))

    # Result

    def finish(
        self,
        model: Model,
        description: dict[str, Any],
        metrics: dict[str, Any],
        predictions: dict[str, list[int]],
        test_loss: list[float],
    ) -> None:
        """Writes the result; the weights, which make the run finished, come last."""
        write_json(self._predictions, {**predictions, "test_loss": test_loss})
        rows = [row for row in self.metrics() if "test_accuracy" not in row]  # of a run killed right here
        write_json_lines(self._metrics, [*rows, metrics])
        self.model_folder.write(description | {"run": self.identity}, model.state_dict())
        self._remove_checkpoints()

    def _remove_checkpoints(self) -> None:
        for path in (self._checkpoint, self._best):
            path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Removes what a kill right after the last write left in a finished run."""
        if any(path.exists() for path in (self._checkpoint, self._best, self._lock)):
            with self.lock():
                self._remove_checkpoints()

    def contents(self) -> dict[str, bytes]:
        """Returns the files of a finished run, by name."""
        paths = (path for path in sorted(self.path.rglob("*")) if path.is_file())
        return {path.relative_to(self.path).as_posix(): path.read_bytes() for path in paths}

    def replace_contents(self, files: dict[str, bytes]) -> None:
        """Writes the files of a run that was finished elsewhere; the weights, which make it finished, come last."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.lock():
            for name in sorted(files, key=lambda name: self.path / name == self.model_folder.weights):
                (self.path / name).parent.mkdir(exist_ok=True)
                write_file(self.path / name, partial(Path.write_bytes, data=files[name]))
            self._remove_checkpoints()

    def test_metrics(self) -> dict[str, Any] | None:
        """Returns the metrics of the test; None before the run is finished.

        Raises:
            PolycovError: if they are damaged.
        """
        row = next((row for row in self.metrics() if "test_accuracy" in row), None)
        if row is not None:
            structure(Tested, {key: row.get(key) for key in TESTED}, f"the last line of {str(self._metrics)!r}")
        return row

    def predictions(self) -> dict[str, list[int]]:
        """Returns the predicted classes of the validation and test images."""
        found = self._read_predictions()
        return {split: classes for split in ("val", "test") if (classes := getattr(found, split)) is not None}

    def test_loss(self) -> list[float] | None:
        """Returns the cross-entropy of each test image; None for a run of an older version."""
        return self._read_predictions().test_loss

    def _read_predictions(self) -> Predicted:
        return structure(Predicted, read_object(self._predictions), repr(str(self._predictions)))

    def load(self) -> Run:
        """Rebuilds the model of the finished run; nothing is downloaded.

        Raises:
            PolycovError: if the folder is not a run, the run is not finished, or its weights do not fit.
        """
        if self.path.is_file():
            raise PolycovError(
                f"Expected the folder of a run, got the file {str(self.path)!r}. An exported file has no images of its "
                "own: evaluate the run it was exported from, or classify images with polycov predict."
            )
        if not self.path.is_dir():
            raise PolycovError(f"There is no run {str(self.path)!r}.")
        model = Model.from_pretrained(self.path)
        data = self.read_description().get("data")
        if not isinstance(data, dict):
            raise PolycovError(f"The config.json of {str(self.path)!r} does not describe its data.")
        return Run(self.path, self.read_config(), model, data)


def describe_data(data: ImageData) -> dict[str, Any]:
    """Returns what ``config.json`` says about the data."""
    counts = {split: len(samples) for split, samples in data.splits.items()}
    return {"name": data.name, "fingerprint": data.fingerprint(), "images": counts}


def load_run(folder: str | Path) -> Run:
    """Rebuilds the model of a finished run; see `RunFolder.load`."""
    return RunFolder(folder).load()

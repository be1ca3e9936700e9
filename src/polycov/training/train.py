"""Training a classifier in one call."""

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list

from polycov.data.images import ImageData
from polycov.data.read import BUILT_IN
from polycov.errors import PolycovError
from polycov.models.backbones import load_plugin
from polycov.models.model import Model
from polycov.progress import SILENT, Progress
from polycov.system.devices import choose_device
from polycov.system.files import cache_folder
from polycov.system.memory import keep_freed_memory
from polycov.system.signals import stop_on_signals
from polycov.training.assembly import load_data
from polycov.training.config import Config, RuntimeOptions
from polycov.training.experiment import Experiment
from polycov.training.predictions import Predictions
from polycov.training.run_folder import RunFolder


@dataclass(frozen=True)
class TrainResult:
    """A finished run.

    Attributes:
        folder: folder of the run; `polycov.evaluate`, `polycov.predict` and the commands take it.
        test_accuracy: share of the test images that are classified correctly.
        interval: its 95 % interval.
        val_accuracy: accuracy on validation, where everything was chosen; None without validation images.
        images: the number of test images.
        metrics: a row per epoch, and one for the test.
    """

    folder: Path
    test_accuracy: float
    interval: tuple[float, float]
    val_accuracy: float | None
    images: int
    metrics: list[dict[str, Any]]

    def __str__(self) -> str:
        low, high = self.interval
        validation = f", validation {self.val_accuracy:.2%}" if self.val_accuracy is not None else ""
        accuracy = f"test accuracy {self.test_accuracy:.2%} (95 %: {low:.1%} to {high:.1%})"
        return f"{accuracy} on {self.images} images{validation}"

    def load(self) -> Model:
        """Returns the trained model, in evaluation mode."""
        return RunFolder(self.folder).load().model


def train(
    data: str | Path | Config = "typefaces",
    out: str | Path | None = None,
    *,
    resume: bool = False,
    cache: str | Path | None = None,
    progress: Progress = SILENT,
    **options: Any,
) -> TrainResult:
    """Trains a classifier on images, or resumes a run.

    Args:
        data: images, as `Config.data` describes them; or a whole `Config`. With ``resume``, those of the run.
        out: folder of the run; default: a new one in ``runs``.
        resume: resume the interrupted run in ``out``.
        cache: folder for local features; default: POLYCOV_CACHE or the user's cache folder.
        progress: receives messages and progress.
        options: any option of `Config` by its name, such as ``pool="isqrt-cov"``, ``epochs=5`` or ``probe=True``.

    Raises:
        PolycovError: if an option or the data cannot be used.
        NonFiniteError: if a loss is not finite; the last checkpoint is kept.
    """
    config = _with_absolute_path(_config(data, out, resume).replace(**options).check())
    load_plugin(config.runtime.plugin)
    keep_freed_memory()
    accelerator = make_accelerator(config.runtime, config.training.precision)
    progress = progress if accelerator.is_main_process else Progress()
    given = None if out is None else _require_folder(RunFolder(out), resume)
    if given is not None and resume and given.finished:
        if accelerator.is_main_process:
            given.tidy()
        result = _result(given)
        progress.message(f"already finished: {result}")
        return result
    cache_path = cache_folder(None if cache is None else Path(cache))
    images = load_data(config, cache_path, accelerator, progress)
    folder = given or _new_folder(config, accelerator)
    accelerator.wait_for_everyone()
    folder.path.mkdir(parents=True, exist_ok=True)
    progress.message(f"run: {folder.path}")
    try:
        with stop_on_signals(), folder.lock() if accelerator.is_main_process else nullcontext():
            _run(config, folder, resume, images, cache_path, accelerator, progress)
    except BaseException as error:
        with suppress(OSError):
            folder.path.rmdir()  # if nothing was written: a mistake in the options leaves no empty folder
        if isinstance(error, KeyboardInterrupt) and folder.has_config:
            raise KeyboardInterrupt(f"Resume with: polycov train --resume {folder.path}") from error
        raise
    return _result(folder)


def _config(data: str | Path | Config, out: str | Path | None, resume: bool) -> Config:
    if isinstance(data, Config):
        return data
    if not resume:
        return Config(data=str(data))
    if out is None:
        raise PolycovError("Expected out, the folder of the run to resume.")
    return RunFolder(out).read_config()


def _run(
    config: Config,
    folder: RunFolder,
    resume: bool,
    data: ImageData,
    cache: Path,
    accelerator: Accelerator,
    progress: Progress,
) -> None:
    experiment = Experiment(config, folder, data, cache, accelerator, progress)
    if resume:
        experiment.require_same_as_before()
    test = experiment.probe() if config.training.probe else experiment.train()
    if accelerator.is_main_process:
        _finish(folder, experiment, test)
        progress.message(f"{_result(folder)}\nwritten: {folder.path}")
    accelerator.wait_for_everyone()


def _finish(folder: RunFolder, experiment: Experiment, test: Predictions) -> None:
    low, high = test.interval
    result = {"test_accuracy": test.accuracy, "low": low, "high": high, "top5": test.top5, "images": len(test.labels)}
    predictions = {"test": test.top[:, 0].tolist()}
    if experiment.val is not None:
        predictions["val"] = experiment.val.top[:, 0].tolist()
    description = experiment.description | {"result": result}
    losses = [round(loss, 3) for loss in test.loss.tolist()]
    folder.finish(experiment.model, description, {**experiment.chosen, **result}, predictions, losses)


def _result(folder: RunFolder) -> TrainResult:
    metrics = folder.metrics()
    test = folder.test_metrics()
    if test is None:
        raise PolycovError(f"The run {str(folder.path)!r} has no test metrics in its metrics.jsonl.")
    interval, val = (test["low"], test["high"]), test.get("val_accuracy")
    return TrainResult(folder.path, test["test_accuracy"], interval, val, test["images"], metrics)


def _with_absolute_path(config: Config) -> Config:
    """The configuration with the absolute path of its folder, so that the run can be used from anywhere."""
    path = Path(config.data).expanduser()
    return config.replace(data=str(path.resolve())) if config.data not in BUILT_IN and path.exists() else config


def make_accelerator(runtime: RuntimeOptions, precision: str = "no") -> Accelerator:
    """Returns the processes and the device of a run.

    Raises:
        PolycovError: if the device or the precision is not available.
    """
    # An earlier run in this process may have used another precision or device.
    AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
    device = choose_device(runtime.device)
    try:
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)
        return Accelerator(cpu=device.type == "cpu", mixed_precision=precision)
    except ValueError as error:
        raise PolycovError(f"Device {device} with precision {precision!r} is not available: {error}") from error


def _require_folder(folder: RunFolder, resume: bool) -> RunFolder:
    """The folder given for a run, if it has one to resume, or none that would be overwritten."""
    name = str(folder.path)
    if resume and not folder.has_config:
        raise PolycovError(f"There is no run to resume in {name!r}.")
    if not resume and folder.exists:
        raise PolycovError(f"There is already a run in {name!r}. Resume it with: polycov train --resume {name}")
    return folder


def _new_folder(config: Config, accelerator: Accelerator) -> RunFolder:
    """A new folder in ``runs``, the same for all processes."""
    stem = f"{Path(config.data).name or 'data'}-{config.pooling.pool.partition('|')[0].strip()}"
    chosen = [RunFolder.create(stem).path] if accelerator.is_main_process else [Path()]
    return RunFolder(broadcast_object_list(chosen)[0] if accelerator.num_processes > 1 else chosen[0])

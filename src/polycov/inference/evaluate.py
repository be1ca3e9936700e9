"""Evaluating a run on its images or others."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from polycov.data.broken import Broken, exclude_broken, find_broken
from polycov.data.images import ImageData, Samples, join
from polycov.data.read import read_splits
from polycov.errors import PolycovError, quoted
from polycov.inference.evaluation import ClassResult, Confusion, Evaluation
from polycov.models.backbones import load_plugin
from polycov.models.frozen_model import FrozenModel
from polycov.progress import SILENT, Progress
from polycov.system.files import cache_folder
from polycov.system.structure import Structured
from polycov.system.tables import Cell, Table
from polycov.training.assembly import read_split
from polycov.training.batches import ImageBatches
from polycov.training.config import RuntimeOptions, replace_options
from polycov.training.predictions import Predictions, predict_split
from polycov.training.run_folder import Run, load_run
from polycov.training.train import make_accelerator

MAX_COLUMNS = 1000  # of a confusion matrix; spreadsheets open few more


@dataclass(frozen=True)
class EvaluateOptions(Structured):
    """Evaluate a run: accuracy with a 95 % interval, per class, and the classes it confuses."""

    run: str
    """Folder of a finished run."""
    data: str | None = None
    """Images, as for train; default: those of the run. Classes are matched by name."""
    split: Literal["test", "val", "train", "all"] = "test"
    """Which split. Other data without splits is evaluated as a whole."""
    mirror: bool = False
    """Average predictions over each image and its mirror image."""
    broken: Broken | None = None
    """What to do about unreadable images: stop, or skip them; default: as the run did."""
    batch_size: int = 16
    """Images per batch."""
    out: Path | None = None
    """Folder for evaluation.json, predictions.csv and confusion.csv; default: RUN/evaluation."""
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)


def evaluate(run: str | Path | EvaluateOptions, *, progress: Progress = SILENT, **options: Any) -> Evaluation:
    """Evaluates a finished run.

    Args:
        run: folder of the run, or all options.
        progress: receives messages and progress.
        options: any option of `EvaluateOptions` by its name, such as ``data="folder"``.

    Raises:
        PolycovError: if the run is not finished, or the data have classes that it does not know.
    """
    chosen = run if isinstance(run, EvaluateOptions) else EvaluateOptions(str(run))
    chosen = replace_options(chosen, options)
    runtime = chosen.runtime.check()
    if chosen.batch_size < 1:
        raise PolycovError(f"Expected batch_size to be at least 1, got {chosen.batch_size}.")
    load_plugin(runtime.plugin)
    loaded = load_run(chosen.run)
    accelerator = make_accelerator(runtime)
    progress = progress if accelerator.is_main_process else Progress()

    def exclude(data: ImageData) -> ImageData:
        with accelerator.main_process_first():
            unreadable = find_broken(data, cache_folder(), workers=max(runtime.workers, 1), progress=progress)
        return exclude_broken(data, unreadable, chosen.broken or loaded.config.split.broken, progress)

    data = evaluation_data(loaded, chosen.data, chosen.split, exclude)
    source = ImageBatches(data, loaded.preprocessing, runtime.workers)
    network = FrozenModel(
        loaded.model.to(accelerator.device),
        runtime.backend,
        images=len(data["test"]),
        batch_size=chosen.batch_size,
        progress=progress,
    )
    with progress.task("evaluating", len(data["test"]) // accelerator.num_processes) as task:
        predictions = predict_split(
            network, source, "test", accelerator, batch_size=chosen.batch_size, mirror=chosen.mirror, task=task
        )
    folder = chosen.out or Path(chosen.run) / "evaluation"
    evaluation = replace(summarise(loaded, data, predictions, chosen), folder=folder)
    if accelerator.is_main_process:
        evaluation.write(folder)
    return evaluation


def evaluation_data(run: Run, data: str | None, split: str, exclude: Callable[[ImageData], ImageData]) -> ImageData:
    """Returns the images to evaluate on as the split "test", with the labels of the run's classes.

    Args:
        run: run to evaluate.
        data: other images than its own.
        split: which of them.
        exclude: drops unreadable images.

    Raises:
        PolycovError: if a class is unknown to the run, or there are no such images.
    """
    name = data or run.config.data
    if _same_place(name, run.config.data):
        images = exclude(read_split(name, run.config.split))
        if images.fingerprint() != run.data.get("fingerprint"):
            images.notes.append("the data changed since the run: the splits may differ from those it was trained with")
        splits: dict[str, Samples] = {name: samples for name, samples in images.splits.items()}
    else:
        images = exclude(read_splits(name))
        splits = _splits_to_measure(images)
    if split != "all" and not len(splits.get(split, ())):
        raise PolycovError(f"There is no split {split!r} in {name!r}. Available: {', '.join(splits)}.")
    samples = join(list(splits.values())) if split == "all" else splits[split]
    samples = _relabelled(samples, images.classes, run.classes)
    empty = samples.select([])
    return replace(images, classes=run.classes, splits={"train": empty, "val": empty, "test": samples})


def _splits_to_measure(data: ImageData) -> dict[str, Samples]:
    """The splits of other data: without a test split, validation is taken for it, or everything."""
    splits: dict[str, Samples] = {name: samples for name, samples in data.splits.items() if len(samples)}
    if "test" in splits:
        return splits
    if "val" not in splits:
        return {"test": join(list(splits.values()))}
    return {"test": splits["val"]} | {name: samples for name, samples in splits.items() if name == "train"}


def _same_place(one: str, other: str) -> bool:
    if one == other:
        return True
    return Path(one).exists() and Path(other).exists() and Path(one).resolve() == Path(other).resolve()


def _relabelled(samples: Samples, theirs: list[str], ours: list[str]) -> Samples:
    index = {name: i for i, name in enumerate(ours)}
    used = {theirs[label] for label in samples.labels}
    unknown = sorted(used - set(index))
    if unknown:
        raise PolycovError(
            f"The run does not know {len(unknown)} of the {len(used)} classes: {quoted(unknown)}. "
            f"It knows {quoted(ours)}."
        )
    return Samples(samples.source, samples.items, [index[theirs[label]] for label in samples.labels])


def summarise(run: Run, data: ImageData, predictions: Predictions, options: EvaluateOptions) -> Evaluation:
    """Returns the evaluation that predictions amount to."""
    names, samples = run.classes, data["test"]
    pairs = Counter(zip(predictions.labels.tolist(), predictions.top[:, 0].tolist(), strict=True))
    counts = torch.bincount(predictions.labels, minlength=len(names)).tolist()
    correct = torch.bincount(predictions.labels[predictions.correct], minlength=len(names)).tolist()
    results = zip(names, counts, correct, strict=True)
    classes = [ClassResult(name, count, right, right / count) for name, count, right in results if count]
    mistakes = Counter({(names[a], names[b]): n for (a, b), n in pairs.items() if a != b})
    rows = [
        (samples.name(i), names[samples.labels[i]], names[int(best)], f"{float(probability):.4f}")
        for i, (best, probability) in enumerate(zip(predictions.top[:, 0], predictions.probability[:, 0], strict=True))
    ]
    return Evaluation(
        run=str(options.run),
        data=data.name,
        split=options.split,
        mirror=options.mirror,
        notes=list(data.notes),
        images=len(predictions.labels),
        accuracy=predictions.accuracy,
        interval=predictions.interval,
        top5=predictions.top5,
        loss=float(predictions.loss.mean()),
        mean_class_accuracy=sum(row.accuracy for row in classes) / len(classes),
        classes=classes,
        confusions=[Confusion(a, b, n) for (a, b), n in mistakes.most_common(50)],
        predictions=Table(("image", "class", "prediction", "probability"), rows),
        confusion_matrix=_confusion_matrix(names, pairs),
    )


def _confusion_matrix(names: list[str], pairs: "Counter[tuple[int, int]]") -> Table:
    """A row per class and a column per prediction; of many classes, a row per pair that occurs."""
    if len(names) > MAX_COLUMNS:
        listed: list[list[Cell]] = [[names[a], names[b], count] for (a, b), count in sorted(pairs.items())]
        return Table(("class", "prediction", "images"), listed)
    rows: list[list[Cell]] = [[name, *(pairs[i, j] for j in range(len(names)))] for i, name in enumerate(names)]
    return Table(("class \\ prediction", *names), rows)

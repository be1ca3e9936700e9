"""``polycov evaluate``: accuracy with its interval, class by class, and what is taken for what."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from polycov.data.images import ImageData, Samples, join
from polycov.data.read import find_data, read_data
from polycov.errors import PolycovError
from polycov.progress import make_console, ticking
from polycov.system.files import cache_folder, write_csv, write_json

if TYPE_CHECKING:
    from rich.console import Console

    from polycov.training.run_folder import Run
    from polycov.training.scores import Scores


@dataclass
class Evaluate:
    """Measure a run: accuracy with a 95 % interval, class by class, and the classes it confuses."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a finished run."""
    data: str | None = None
    """Pictures, as for train; by default those that the run learned from. Classes go by their names."""
    part: Literal["test", "val", "train", "all"] = "test"
    """Which part. Other data without parts are measured whole."""
    mirror: bool = False
    """Average the prediction over each picture and its mirror image."""
    broken: Literal["stop", "skip"] = "stop"
    """What to do about pictures that cannot be read."""
    batch_size: int = 16
    """Pictures at a time."""
    workers: int = 2
    """Processes that prepare pictures."""
    out: Path | None = None
    """Folder for evaluation.json, predictions.csv and confusion.csv; by default RUN/evaluation."""


def run(options: Evaluate) -> None:
    """Measures a run.

    Raises:
        PolycovError: if the run is not finished, or the data have classes that it does not know.
    """
    from accelerate import Accelerator

    from polycov.data.broken import look_for_broken, without_broken
    from polycov.training.batches import PictureFeed
    from polycov.training.run_folder import load_run
    from polycov.training.scores import score

    loaded = load_run(options.run)
    accelerator = Accelerator()
    console = make_console(quiet=not accelerator.is_main_process)
    if options.batch_size < 1 or options.workers < 0:
        raise PolycovError("Expected batch_size to be at least 1, and workers 0 or more.")

    def clean(data: ImageData) -> ImageData:
        with accelerator.main_process_first():
            found = look_for_broken(data, cache_folder(), console, max(options.workers, 1))
        return without_broken(data, found, options.broken, console)

    data = data_of(loaded, options.data, options.part, clean)
    feed = PictureFeed(data, loaded.preprocessing, options.workers)
    with ticking(console, "pictures", len(data["test"]) // accelerator.num_processes) as tick:
        model = loaded.model.to(accelerator.device)
        scores = score(model, feed, "test", accelerator, batch=options.batch_size, mirror=options.mirror, tick=tick)
    if accelerator.is_main_process:
        found = summary(loaded, data, scores, options)
        _show(console, found)
        folder = options.out or options.run / "evaluation"
        _write(folder, found, data, scores, loaded.classes)
        console.print(f"written: {folder}", soft_wrap=True, markup=False)


def data_of(run: "Run", data: str | None, part: str, clean: Callable[[ImageData], ImageData]) -> ImageData:
    """Returns the pictures to measure on as the part "test", with the labels of the run's classes.

    Args:
        run: to measure.
        data: other pictures than its own.
        part: which of them.
        clean: leaves out broken pictures.

    Raises:
        PolycovError: if a class is unknown to the run, or there are no such pictures.
    """
    options = run.config.data
    name = data or options.data
    own = _same(name, options.data)
    split: dict[str, Any] = {"val_fraction": options.val_fraction, "test_fraction": options.test_fraction}
    if own:
        found = read_data(name, **split, split_seed=options.split_seed, val_seed=options.val_seed)
        found = clean(found)
        if found.fingerprint() != run.data["fingerprint"]:
            found.notes.append("the data changed since the run: the split may not be the one it was trained with")
        parts = found.parts
    else:
        found = clean(find_data(name))
        parts = {key: value for key, value in found.parts.items() if len(value)}
        if "test" not in parts:
            measured = {"test": parts["val"]} if "val" in parts else {"test": join(list(parts.values()))}
            parts = measured | {key: value for key, value in parts.items() if key == "train" and "val" in parts}
    if part != "all" and not len(parts.get(part, ())):
        raise PolycovError(f"There is no part {part!r} in {name!r}. There are: {', '.join(p for p in parts)}.")
    samples = join(list(parts.values())) if part == "all" else parts[part]
    samples = _relabelled(samples, found.classes, run.classes)
    empty = samples.select([])
    return replace(found, classes=run.classes, parts={"train": empty, "val": empty, "test": samples})


def _same(one: str, other: str) -> bool:
    return one == other or (
        Path(one).exists() and Path(other).exists() and Path(one).resolve() == Path(other).resolve()
    )


def _relabelled(samples: Samples, theirs: list[str], ours: list[str]) -> Samples:
    number = {name: i for i, name in enumerate(ours)}
    used = {theirs[label] for label in samples.labels}
    unknown = sorted(used - set(number))
    if unknown:
        raise PolycovError(
            f"The run does not know {len(unknown)} of the {len(used)} classes: {_first(unknown)}. "
            f"It knows {_first(ours)}."
        )
    return Samples(samples.source, samples.items, [number[theirs[label]] for label in samples.labels])


def _first(names: list[str], count: int = 5) -> str:
    return ", ".join(map(repr, names[:count])) + (" …" if len(names) > count else "")


def summary(run: "Run", data: ImageData, scores: "Scores", options: Evaluate) -> dict[str, Any]:
    """Returns what ``evaluation.json`` holds."""
    from polycov.training.scores import wilson

    right = int(scores.right.sum())
    low, high = wilson(right, len(scores.labels))
    classes: list[dict[str, Any]] = []
    for i, name in enumerate(run.classes):
        mine = scores.labels == i
        if bool(mine.any()):
            hits, count = int(scores.right[mine].sum()), int(mine.sum())
            classes.append({"class": name, "pictures": count, "right": hits, "accuracy": hits / count})
    pairs = Counter(
        (run.classes[a], run.classes[b])
        for a, b in zip(scores.labels.tolist(), scores.top[:, 0].tolist(), strict=True)
        if a != b
    )
    return {
        "run": str(options.run),
        "data": data.name,
        "part": options.part,
        "mirror": options.mirror,
        "notes": data.notes,
        "pictures": len(scores.labels),
        "accuracy": scores.accuracy,
        "interval": [low, high],
        "top5": scores.top5,
        "loss": float(scores.loss.mean()),
        "mean_class_accuracy": sum(row["accuracy"] for row in classes) / len(classes),
        "classes": classes,
        "confused": [{"class": a, "taken_for": b, "times": n} for (a, b), n in pairs.most_common(50)],
    }


def _show(console: "Console", found: dict[str, Any], rows: int = 12) -> None:
    from rich.markup import escape
    from rich.table import Table

    low, high = found["interval"]
    for note in found["notes"]:
        console.print(f"note: {note}", markup=False)
    console.print(
        f"accuracy {found['accuracy']:.2%} (95 %: {low:.1%} to {high:.1%}) on {found['pictures']} pictures of "
        f"{found['data']}; mean over classes {found['mean_class_accuracy']:.2%}, top five {found['top5']:.2%}",
        markup=False,
    )
    worst = sorted(found["classes"], key=lambda row: row["accuracy"])[:rows]
    table = Table(
        "class", "pictures", "right", title="the hardest classes" if len(found["classes"]) > rows else "classes"
    )
    for row in worst:
        table.add_row(escape(row["class"]), str(row["pictures"]), f"{row['accuracy']:.0%}")
    console.print(table)
    if found["confused"]:
        table = Table("class", "taken for", "times", title="what is taken for what")
        for row in found["confused"][:rows]:
            table.add_row(escape(row["class"]), escape(row["taken_for"]), str(row["times"]))
        console.print(table)


def _write(folder: Path, found: dict[str, Any], data: ImageData, scores: "Scores", classes: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "evaluation.json", found)
    samples = data["test"]
    rows = (
        [
            samples.name(i),
            classes[samples.labels[i]],
            classes[int(scores.top[i, 0])],
            f"{float(scores.probability[i, 0]):.4f}",
        ]
        for i in range(len(samples))
    )
    write_csv(folder / "predictions.csv", ["picture", "class", "prediction", "probability"], rows)
    counts = Counter(zip(scores.labels.tolist(), scores.top[:, 0].tolist(), strict=True))
    matrix = ([name, *(counts[i, j] for j in range(len(classes)))] for i, name in enumerate(classes))
    write_csv(folder / "confusion.csv", ["class \\ prediction", *classes], matrix)

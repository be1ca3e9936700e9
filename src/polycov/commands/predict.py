"""``polycov predict``."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.errors import PolycovError
from polycov.inference.predict import Prediction, image_files, predict, predictions_table
from polycov.models.backbones import load_plugin
from polycov.models.backends.frozen import Backend
from polycov.system.signals import uninterrupted
from polycov.system.tables import Table


@dataclass(frozen=True)
class Predict:
    """Classify images."""

    model: str
    """Folder of a finished run or of a saved model, a name on the hub, or a file written by polycov export."""
    images: tuple[Path, ...] = ()
    """Images, or folders of images."""
    top: int = 5
    """Classes to show per image."""
    mirror: bool = False
    """Average predictions over each image and its mirror image."""
    out: Path | None = None
    """A CSV file to write instead of showing a table: a line per image, with classes and probabilities."""
    device: str = "auto"
    """auto (CUDA, then MPS, then CPU), or a device such as cuda:1."""
    backend: Backend = "auto"
    """What runs the backbone of a model: torch, onnxruntime or openvino (pip install 'polycov[fast]'); auto: on a CPU
    the fastest that is installed and agrees with torch on the first images, for 128 images or more; else torch."""
    plugin: str | None = None
    """A Python file or module to import first, which registers the backbone with timm."""


def run(arguments: list[str]) -> None:
    """Classifies images; those that cannot be classified are named, and the exit code is 1 if there were any."""
    options = parse(Predict, "predict", arguments, positional={"model": "RUN|MODEL|FILE.onnx", "images": "IMAGE…"})
    if options.out is not None and options.out.is_dir():
        raise PolycovError(f"Expected out to be a file, got the folder {str(options.out)!r}.")
    load_plugin(options.plugin)
    terminal, done = Terminal(), list[Prediction]()
    images = image_files(options.images)
    predictions = predict(
        options.model,
        images,
        top=options.top,
        mirror=options.mirror,
        device=options.device,
        backend=options.backend,
        progress=terminal.progress,
    )
    try:
        for prediction in predictions:
            done.append(prediction)
    finally:  # what was predicted before an interruption is not lost
        with uninterrupted():
            _show([p for p in done if not p.problem], len(images), complete=len(done) == len(images), options=options)
    failed = sum(bool(prediction.problem) for prediction in done)
    if failed:
        sys.exit(f"polycov: {failed} of {len(images)} images could not be classified.")


def _show(predictions: Sequence[Prediction], total: int, complete: bool, options: Predict) -> None:
    if not predictions:
        return
    terminal, top = Terminal(), len(predictions[0].classes)
    if options.out is None:
        terminal.table(_readable(predictions, top))
        return
    partial = options.out.with_suffix(f".partial{options.out.suffix}")
    path = options.out if complete else partial
    path.parent.mkdir(parents=True, exist_ok=True)
    predictions_table(predictions, top).to_csv(path)
    if complete:
        partial.unlink(missing_ok=True)  # of an earlier run, which was interrupted
    terminal.write(f"written: {path}, {len(predictions)} of {total} images")


def _readable(predictions: Sequence[Prediction], top: int) -> Table:
    common = os.path.commonpath([prediction.image.absolute().parent for prediction in predictions])
    rows = [
        (
            os.path.relpath(prediction.image.absolute(), common),
            *(f"{name} {probability:.0%}" for name, probability in prediction.classes),
        )
        for prediction in predictions
    ]
    return Table(("image", *(f"{i + 1}." for i in range(top))), rows)

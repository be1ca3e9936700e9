"""``polycov predict``: the classes of pictures."""

import os
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import tyro

from polycov.data.images import decode
from polycov.data.layouts import pictures
from polycov.errors import NonFiniteError, PolycovError
from polycov.progress import make_console, ticking
from polycov.system.files import write_csv

if TYPE_CHECKING:
    from rich.table import Table

    from polycov.models.export import OnnxClassifier
    from polycov.models.model import Model

Prediction = tuple[Path, list[tuple[str, float]]]  # the picture; classes with their probabilities, the best first


@dataclass
class Predict:
    """Name the most probable classes of pictures."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL|FILE.onnx")]
    """Folder of a finished run or of a saved model, a name on the hub, or a file that polycov export wrote."""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE…")]
    """Pictures, or folders of pictures."""
    mirror: bool = False
    """Average the prediction over each picture and its mirror image."""
    top: int = 5
    """How many classes to name."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """A CSV file to write them to, instead of showing them: a line for each picture, with classes and probabilities."""


def run(options: Predict) -> None:
    """Prints predictions; pictures that cannot be classified are named, and the exit code is 1 if there were any.

    Raises:
        PolycovError: if the run is not finished, or there are no pictures.
    """
    from PIL import Image

    files = picture_files(options.images)
    if options.top < 1:
        raise PolycovError(f"Expected top to be at least 1, got {options.top}.")
    if options.out is not None:
        if options.out.is_dir():
            raise PolycovError(f"Expected out to be a file, got the folder {str(options.out)!r}.")
        options.out.parent.mkdir(parents=True, exist_ok=True)
    model = classifier(options.run)
    console, count, unread = make_console(), min(options.top, len(model.classes)), 0
    rows: list[Prediction] = []
    try:
        with ticking(console, "pictures", len(files)) as tick:
            for file in files:
                try:
                    image = model.preprocessing(decode(Image.open(file)))
                    found = torch.topk(model.predict(image[None], mirror=options.mirror)[0], count)
                except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, NonFiniteError) as error:
                    console.print(f"cannot classify {file}: {error}", markup=False, soft_wrap=True)
                    unread += 1
                else:
                    values, numbers = (one.tolist() for one in found)
                    rows.append((file, [(model.classes[i], value) for i, value in zip(numbers, values, strict=True)]))
                tick(1)
    finally:  # of a stop too: what was found is not lost
        if options.out is not None:
            _write(options.out, rows, count)
            said = f"written: {options.out}, {len(rows)} of {len(files)} pictures"
            console.print(said, soft_wrap=True, markup=False)
        elif rows:
            console.print(_table(rows, count))
    if unread:
        sys.exit(f"polycov: {unread} of {len(files)} pictures could not be classified.")


def _write(path: Path, rows: list[Prediction], count: int) -> None:
    head = [f"{kind} {i + 1}" for i in range(count) for kind in ("class", "probability")]
    write_csv(path, ["picture", *head], ([file, *chain(*best)] for file, best in rows))


def _table(rows: list[Prediction], count: int) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    common = os.path.commonpath([file.absolute().parent for file, _ in rows])
    table = Table("picture", *(f"{i + 1}." for i in range(count)))
    for column in table.columns:
        column.overflow = "fold"  # the ends of names are what tells them apart
    for file, best in rows:
        cells = (f"{name} {probability:.0%}" for name, probability in best)
        table.add_row(escape(os.path.relpath(file.absolute(), common)), *map(escape, cells))
    return table


def classifier(name: str) -> "Model | OnnxClassifier":
    """Returns the classifier of a run, a saved model, a name on the hub, or an ONNX file."""
    if name.endswith(".onnx"):
        from polycov.models.export import OnnxClassifier

        return OnnxClassifier(name)
    from polycov.models.model import Model

    return Model.from_pretrained(name)


def picture_files(given: tuple[Path, ...]) -> list[Path]:
    """Returns picture files and those in folders, in order.

    Raises:
        PolycovError: if one is not there, or there are none.
    """
    files: list[Path] = []
    for path in given:
        if not path.exists():
            raise PolycovError(f"There is no picture {str(path)!r}.")
        files += [path / name for name in pictures(path)] if path.is_dir() else [path]
    if not given:
        raise PolycovError("Expected pictures, or folders of pictures.")
    if not files:
        raise PolycovError(f"There are no pictures in {', '.join(map(str, given))}.")
    return files

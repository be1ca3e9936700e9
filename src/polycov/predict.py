"""``polycov predict``: the classes of pictures."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import tyro

from polycov.data.images import decode
from polycov.data.layouts import pictures
from polycov.errors import PolycovError
from polycov.progress import make_console

if TYPE_CHECKING:
    from polycov.export import OnnxClassifier
    from polycov.model import Model


@dataclass
class Predict:
    """Name the five most probable classes of pictures."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL|FILE.onnx")]
    """Folder of a finished run or of a saved model, a name on the hub, or a file that polycov export wrote."""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE…")]
    """Pictures, or folders of pictures."""
    mirror: bool = False
    """Average the prediction over each picture and its mirror image."""
    top: int = 5
    """How many classes to name."""


def run(options: Predict) -> None:
    """Prints predictions; pictures that cannot be read are named, and the exit code is 1 if there were any.

    Raises:
        PolycovError: if the run is not finished, or there are no pictures.
    """
    from PIL import Image
    from rich.markup import escape
    from rich.table import Table

    files = picture_files(options.images)
    if options.top < 1:
        raise PolycovError(f"Expected top to be at least 1, got {options.top}.")
    model = classifier(options.run)
    console, unread = make_console(), 0
    table = Table("picture", *(f"{i + 1}." for i in range(min(options.top, len(model.classes)))))
    table.columns[0].overflow = "fold"  # the end of a path is what tells pictures apart
    for file in files:
        try:
            image = decode(Image.open(file))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            console.print(f"cannot read {file}: {error}", markup=False, soft_wrap=True)
            unread += 1
            continue
        probabilities = model.predict(model.preprocessing(image)[None], mirror=options.mirror)[0]
        best = torch.topk(probabilities, len(table.columns) - 1)
        cells = (
            f"{model.classes[i]} {p:.0%}" for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        )
        table.add_row(escape(str(file)), *map(escape, cells))
    if table.row_count:
        console.print(table)
    if unread:
        sys.exit(f"polycov: {unread} of {len(files)} pictures could not be read.")


def classifier(name: str) -> "Model | OnnxClassifier":
    """Returns the classifier of a run, a saved model, a name on the hub, or an ONNX file."""
    if name.endswith(".onnx"):
        from polycov.export import OnnxClassifier

        return OnnxClassifier(name)
    from polycov.model import Model

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

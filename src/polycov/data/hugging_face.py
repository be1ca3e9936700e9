"""Data sets of the Hugging Face hub, or saved on disk in its formats."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from polycov.data.images import ImageData, Samples
from polycov.data.layouts import TEST, TRAIN, VAL
from polycov.errors import PolycovError

Item = tuple[str, int]  # split, row


@dataclass
class Rows:
    """Pictures in the rows of data sets by split; an item is a split and a row."""

    splits: dict[str, Any]
    column: str
    sound = False

    def open(self, item: Item) -> Image.Image:
        """Opens a picture, from the bytes in its row or the file it names."""
        image = self.splits[item[0]][item[1]][self.column]
        return Image.open(io.BytesIO(image["bytes"]) if image["bytes"] else image["path"])

    def name(self, item: Item) -> str:
        """Split and row."""
        return f"{item[0]}/{item[1]:08d}"

    def stamp(self, item: Item) -> str:
        """The fingerprint that the library keeps."""
        return str(getattr(self.splits[item[0]], "_fingerprint", ""))


def read_hugging_face(name: str) -> ImageData:
    """Reads a data set by its name on the hub, or a folder: saved by ``save_to_disk``, or of Parquet files.

    Raises:
        PolycovError: if ``datasets`` is not installed, there is no such data set, or it has no picture and class.
    """
    try:
        import datasets
    except ImportError as error:
        raise PolycovError("hfds/… needs Hugging Face datasets. Install it with: pip install datasets") from error
    try:
        saved = (Path(name) / "dataset_dict.json").is_file()
        found = datasets.load_from_disk(name) if saved else datasets.load_dataset(name)
    except Exception as error:  # no network, no such name, broken files: each in its own way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PolycovError(f"Cannot read the data set {name!r}: {reason}") from error
    first = next(iter(found.values()))
    image = [key for key, kind in first.features.items() if isinstance(kind, datasets.Image)]
    label = [key for key, kind in first.features.items() if isinstance(kind, datasets.ClassLabel)]
    if not image or not label:
        raise PolycovError(
            f"Expected a column of images and one of class labels in {name!r}, got {', '.join(first.features)}."
        )
    column, target = image[0], "label" if "label" in label else label[0]
    splits = {key: rows.cast_column(column, datasets.Image(decode=False)) for key, rows in found.items()}
    source = Rows(splits, column)
    parts = {}
    for part, names in (("train", TRAIN), ("val", VAL), ("test", TEST)):
        split = next((key for key in splits if key.lower() in names), None)
        if split is not None:
            labels = [int(value) for value in splits[split][target]]
            keep = [i for i, value in enumerate(labels) if value >= 0]  # −1: a class that is not told
            if keep:
                parts[part] = Samples(source, [(split, i) for i in keep], [labels[i] for i in keep])
    notes = [f"classes from the column {target!r}"] if len(label) > 1 else []
    return ImageData(Path(name).name, list(first.features[target].names), parts, notes=notes)

"""Datasets of the Hugging Face hub, or saved on disk in its formats."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polycov.data.class_folders import SPLIT_NAMES
from polycov.data.image_files import Content
from polycov.data.images import SPLITS, ImageData, Samples
from polycov.errors import MissingDependencyError, PolycovError, first_line

Item = tuple[str, int]  # table, row


@dataclass
class Rows:
    """Images in the rows of tables. An item is the name of a table and a row."""

    tables: dict[str, Any]
    column: str
    always_readable = False

    def open(self, item: Item) -> Content:
        """The bytes in its row, or the file named there."""
        image = self.tables[item[0]][item[1]][self.column]
        content: Content = image["bytes"] or image["path"]
        return content

    def name(self, item: Item) -> str:
        """Table and row."""
        return f"{item[0]}/{item[1]:08d}"

    def stamp(self, item: Item) -> str:
        """The fingerprint kept by the datasets library."""
        return str(getattr(self.tables[item[0]], "_fingerprint", ""))


def read_hugging_face(name: str) -> ImageData:
    """Reads a dataset by its name on the hub, or a folder: written by ``save_to_disk``, or with Parquet files.

    Raises:
        MissingDependencyError: if ``datasets`` is not installed.
        PolycovError: if the dataset cannot be read, or has no column of images or of classes.
    """
    tables, datasets = _load(name)
    columns = next(iter(tables.values())).features
    images = [key for key, kind in columns.items() if isinstance(kind, datasets.Image)]
    labels = [key for key, kind in columns.items() if isinstance(kind, datasets.ClassLabel)]
    if not images or not labels:
        raise PolycovError(
            f"Expected a column of images and one of class labels in {name!r}, got {', '.join(columns)}."
        )
    label = "label" if "label" in labels else labels[0]
    source = Rows(
        {key: table.cast_column(images[0], datasets.Image(decode=False)) for key, table in tables.items()}, images[0]
    )
    splits = {}
    for split in SPLITS:
        table = next((key for key in source.tables if key.lower() in SPLIT_NAMES[split]), None)
        samples = _samples(source, table, label) if table is not None else None
        if samples:
            splits[split] = samples
    notes = [f"classes from the column {label!r}"] if len(labels) > 1 else []
    return ImageData(Path(name).name, list(columns[label].names), splits, notes=notes)


def _load(name: str) -> tuple[dict[str, Any], Any]:
    """The tables of a dataset, and the library that reads them."""
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            "hfds/… needs Hugging Face datasets. Install it with: pip install 'polycov[data]'"
        ) from error
    try:
        saved = (Path(name) / "dataset_dict.json").is_file()
        return datasets.load_from_disk(name) if saved else datasets.load_dataset(name), datasets
    except Exception as error:  # no network, no such name, damaged files: each raises another kind
        raise PolycovError(f"Cannot read the dataset {name!r}: {first_line(error)}") from error


def _samples(source: Rows, table: str, label: str) -> Samples:
    """The rows with a known class; -1 marks an unknown one."""
    labels = [int(value) for value in source.tables[table][label]]
    rows = [i for i, value in enumerate(labels) if value >= 0]
    return Samples(source, [(table, i) for i in rows], [labels[i] for i in rows])

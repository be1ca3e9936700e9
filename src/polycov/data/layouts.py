"""Three datasets in the layouts they are published in."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

from polycov.data.class_folders import file_samples
from polycov.data.images import SPLITS, ImageData, Samples, Split
from polycov.errors import PolycovError, first_line, require_module
from polycov.system.files import read_lines


def _read_table(path: Path) -> dict[str, str]:
    """Reads a file of lines "key value"."""
    table = {}
    for line in read_lines(path):
        columns = line.split(maxsplit=1)
        if len(columns) == 2:
            table[columns[0]] = columns[1]
        else:
            raise PolycovError(f"Expected lines of two columns in {path.name!r}, got {line!r}.")
    return table


def read_cub(root: Path) -> ImageData | None:
    """Reads Caltech-UCSD Birds 200-2011 as published, with its own split; or other images in this layout."""
    root = _enter(root, "CUB_200_2011", "train_test_split.txt")
    files = ["images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt"]
    if not all((root / file).is_file() for file in files):
        return None
    images, labels, in_training, classes = (_read_table(root / file) for file in files)
    indices = {key: i for i, key in enumerate(classes)}
    pairs: dict[Split, list[tuple[str, int]]] = {"train": [], "test": []}
    try:
        for key, path in images.items():
            pairs["train" if in_training[key] == "1" else "test"].append((f"images/{path}", indices[labels[key]]))
    except KeyError as error:
        raise PolycovError(f"The files of CUB-200-2011 in {str(root)!r} do not agree: no entry {error}.") from error
    name = "CUB-200-2011" if len(classes) == 200 else root.name
    return ImageData(name, list(classes.values()), _listed(root, pairs, len(classes)))


def read_aircraft(root: Path) -> ImageData | None:
    """Reads FGVC-Aircraft as published, by variant; images are squashed to a square, then cropped at the centre."""
    root = _enter(root, "fgvc-aircraft-2013b", "data")
    root = _enter(root, "data", "images_variant_train.txt")
    if not (root / "images_variant_train.txt").is_file():
        return None
    tables = {}
    for split in SPLITS:
        path = root / f"images_variant_{split}.txt"
        if not path.is_file():
            raise PolycovError(f"The file {path.name!r} of FGVC-Aircraft is missing in {str(root)!r}.")
        tables[split] = _read_table(path)
    classes = sorted({variant for table in tables.values() for variant in table.values()})
    labels = {name: i for i, name in enumerate(classes)}
    pairs = {
        split: [(f"images/{key}.jpg", labels[variant]) for key, variant in table.items()]
        for split, table in tables.items()
    }
    return ImageData("FGVC-Aircraft", classes, _listed(root, pairs, len(classes)), squash=True, resize_margin=512 / 448)


def read_cars(root: Path) -> ImageData | None:
    """Reads Stanford Cars as published: two folders with a devkit, or one folder with ``cars_annos.mat``."""
    root = _enter(root, "stanford_cars", "devkit")
    if (root / "cars_annos.mat").is_file():
        return _read_cars_in_one_folder(root)
    train = root / "devkit" / "cars_train_annos.mat"
    if not train.is_file():
        return None
    name = "cars_test_annos_withlabels.mat"
    test = next((path for path in (root / name, root / "devkit" / name) if path.is_file()), None)
    if test is None:
        raise PolycovError(f"Stanford Cars in {str(root)!r} has no {name!r}, the classes of the test images.")
    tables: dict[Split, Path] = {"train": train, "test": test}
    pairs = {
        split: [(f"cars_{split}/{file}", label) for file, label, _ in _cars(path)] for split, path in tables.items()
    }
    classes = _car_classes(root / "devkit" / "cars_meta.mat")
    return ImageData("Stanford Cars", classes, _listed(root, pairs, len(classes)))


def _read_cars_in_one_folder(root: Path) -> ImageData:
    path = root / "cars_annos.mat"
    pairs: dict[Split, list[tuple[str, int]]] = {"train": [], "test": []}
    for file, label, in_test in _cars(path, "relative_im_path", "test"):
        pairs["test" if in_test else "train"].append((file, label))
    classes = _car_classes(path)
    return ImageData("Stanford Cars", classes, _listed(root, pairs, len(classes)))


def _cars(path: Path, file_field: str = "fname", test_field: str | None = None) -> list[tuple[str, int, bool]]:
    """The rows of a file of annotations: image, label, and whether it is for testing."""
    content = _read_matlab(path)
    try:
        return [
            (str(row[file_field]), int(row["class"]) - 1, test_field is not None and bool(row[test_field]))
            for row in np.atleast_1d(content["annotations"])
        ]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise PolycovError(f"The annotations in {str(path)!r} are not those of Stanford Cars: {error}.") from error


def _car_classes(path: Path) -> list[str]:
    content = _read_matlab(path)
    if "class_names" not in content:
        raise PolycovError(f"There are no class names in {str(path)!r}.")
    return [str(name) for name in np.atleast_1d(content["class_names"])]


def _read_matlab(path: Path) -> Any:
    scipy = require_module("scipy.io", "Stanford Cars needs SciPy. Install it with: pip install 'polycov[data]'")
    try:
        return scipy.loadmat(path, squeeze_me=True)
    except Exception as error:  # a damaged file raises many kinds
        raise PolycovError(f"Cannot read {str(path)!r}: {first_line(error)}.") from error


def _listed(root: Path, pairs: Mapping[Split, Sequence[tuple[str, int]]], classes: int) -> dict[Split, Samples]:
    """The images of lists of files and labels.

    Raises:
        PolycovError: if a list leads out of the folder of the dataset, or has a label without a class.
    """
    for file, label in (pair for listed in pairs.values() for pair in listed):
        path = PureWindowsPath(file)  # which knows both separators
        if path.anchor or ".." in path.parts:
            raise PolycovError(f"Expected paths inside {str(root)!r} in its lists of images, got {file!r}.")
        if not 0 <= label < classes:
            raise PolycovError(f"{file!r} is of class {label + 1}, but {str(root)!r} names {classes} classes.")
    return {split: file_samples(root, listed) for split, listed in pairs.items()}


def _enter(root: Path, folder: str, marker: str) -> Path:
    """The folder below that has the marker, or the folder itself."""
    return root / folder if not (root / marker).exists() and (root / folder).is_dir() else root

"""Layouts of folders: class folders, and three datasets as published."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from polycov.data.images import SPLITS, Files, ImageData, Samples, Split
from polycov.data.walk import count_images, list_images
from polycov.errors import MissingDependencyError, PolycovError

SPLIT_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}

ClassFolders = dict[str, list[str]]  # class → files


def find_class_folders(folder: Path) -> ClassFolders:
    """Returns the names of the class folders in a folder, each with its images; folders without images are skipped."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    classes = {name: [f"{name}/{file}" for file in list_images(folder / name)] for name in names}
    return {name: files for name, files in classes.items() if files}


def read_folders(root: Path) -> ImageData | None:
    """Reads class folders, below ``train`` and ``test`` or ``val`` if these exist.

    Raises:
        PolycovError: if a split has images but no class folders, or classes that are not in training.
    """
    if not root.is_dir():
        return None
    folders = _find_split_folders(root)
    notes = _check_split_folders(root, folders)
    folders = {split: pair for split, pair in folders.items() if pair[1]} or {"train": ("", find_class_folders(root))}
    trained = folders["train"][1] if "train" in folders else {name for _, names in folders.values() for name in names}
    classes = sorted(trained)
    if not classes:
        return None
    labels = {name: i for i, name in enumerate(classes)}
    splits = {}
    for split, (folder, members) in folders.items():
        unknown = [name for name in members if name not in labels]
        if unknown:
            raise PolycovError(
                f"The {split} split of {str(root)!r} has classes without training images: "
                f"{', '.join(map(repr, unknown[:5]))}{' …' if len(unknown) > 5 else ''}."
            )
        pairs = [(f"{folder}/{file}" if folder else file, labels[name]) for name in members for file in members[name]]
        splits[split] = _samples(root, pairs)
    return ImageData(root.resolve().name, classes, splits, notes=notes)


def _find_split_folders(root: Path) -> dict[Split, tuple[str, ClassFolders]]:
    with os.scandir(root) as entries:
        folders = {entry.name.lower(): entry.name for entry in entries if entry.is_dir()}
    split_folders = {}
    for split in SPLITS:
        name = next((folders[name] for name in SPLIT_NAMES[split] if name in folders), None)
        if name is not None:
            split_folders[split] = (name, find_class_folders(root / name))
    return split_folders


def _check_split_folders(root: Path, folders: dict[Split, tuple[str, ClassFolders]]) -> list[str]:
    """Notes about images outside class folders; raises if a split has no others."""
    notes = []
    for name, classes in folders.values():
        count = count_images(root / name)
        if count and not classes:
            raise PolycovError(
                f"{str(root / name)!r} has {count} images but no class folders. Expected {name}/CLASS/*.jpg."
            )
        if count:
            notes.append(f"{count} images in {name} itself have no class and are skipped")
    return notes


def _samples(root: Path, pairs: Iterable[tuple[str, int]]) -> Samples:
    files, labels = [], []
    for file, label in pairs:
        files.append(file)
        labels.append(label)
    return Samples(Files(root), files, labels)


def _read_table(path: Path) -> dict[str, str]:
    """Reads a file of lines "key value"."""
    table = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        columns = line.split(maxsplit=1)
        if len(columns) == 2:
            table[columns[0]] = columns[1].strip()
        elif columns:
            raise PolycovError(f"Expected lines of two columns in {path.name!r}, got {line!r}.")
    return table


def read_cub(root: Path) -> ImageData | None:
    """Reads Caltech-UCSD Birds 200-2011 as published, with its own split."""
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
    return ImageData("CUB-200-2011", list(classes.values()), {split: _samples(root, pairs[split]) for split in pairs})


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
    splits = {
        split: _samples(root, ((f"images/{key}.jpg", labels[variant]) for key, variant in table.items()))
        for split, table in tables.items()
    }
    return ImageData("FGVC-Aircraft", classes, splits, squash=True, resize_margin=512 / 448)


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
    splits: dict[Split, Samples] = {}
    tables: dict[Split, Path] = {"train": train, "test": test}
    for split, path in tables.items():
        rows = _read_matlab(path)["annotations"]
        splits[split] = _samples(root, ((f"cars_{split}/{row['fname']}", int(row["class"]) - 1) for row in rows))
    return ImageData("Stanford Cars", _car_classes(_read_matlab(root / "devkit" / "cars_meta.mat")), splits)


def _read_cars_in_one_folder(root: Path) -> ImageData:
    content = _read_matlab(root / "cars_annos.mat")
    pairs: dict[Split, list[tuple[str, int]]] = {"train": [], "test": []}
    for row in content["annotations"]:
        pair = (str(row["relative_im_path"]), int(row["class"]) - 1)
        pairs["test" if int(row["test"]) else "train"].append(pair)
    return ImageData("Stanford Cars", _car_classes(content), {split: _samples(root, pairs[split]) for split in pairs})


def _car_classes(content: Any) -> list[str]:
    return [str(name) for name in content["class_names"]]


def _read_matlab(path: Path) -> Any:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingDependencyError("Stanford Cars needs SciPy. Install it with: pip install scipy") from error
    try:
        return loadmat(path, squeeze_me=True)
    except Exception as error:  # a damaged file raises many kinds
        raise PolycovError(f"Cannot read {str(path)!r}: {str(error).splitlines()[0]}") from error


def _enter(root: Path, folder: str, marker: str) -> Path:
    """The folder below that has the marker, or the folder itself."""
    return root / folder if not (root / marker).exists() and (root / folder).is_dir() else root

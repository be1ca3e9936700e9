"""Layouts of folders: class folders, and three data sets as they are published."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from polycov.data.images import Files, ImageData, Samples
from polycov.errors import PolycovError

TRAIN = ("train", "training")
VAL = ("val", "valid", "validation")
TEST = ("test", "testing")


def extensions() -> tuple[str, ...]:
    """Returns the extensions of the pictures that Pillow reads, in lower case."""
    Image.init()
    return tuple(sorted(ext for ext, kind in Image.registered_extensions().items() if kind in Image.OPEN))


def pictures(folder: Path) -> list[str]:
    """Returns the picture files below a folder, relative to it, sorted, without hidden ones.

    Folders that are linked to are followed, each once.

    Raises:
        OSError: if a folder cannot be read.
    """
    known, found, seen = extensions(), [], {os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        real = {name: os.path.realpath(os.path.join(place, name)) for name in folders if not name.startswith(".")}
        above = os.path.realpath(place) + os.sep
        folders[:] = [name for name in real if real[name] not in seen and not above.startswith(real[name] + os.sep)]
        seen |= {real[name] for name in folders}
        for name in files:
            if name.lower().endswith(known) and not name.startswith("."):
                found.append(os.path.relpath(os.path.join(place, name), folder))
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def _loose(folder: Path) -> int:
    """The number of pictures that lie in a folder itself."""
    known = extensions()
    return sum(e.is_file() and e.name.lower().endswith(known) and e.name[0] != "." for e in os.scandir(folder))


def class_folders(folder: Path) -> dict[str, list[str]]:
    """Returns the names of the class folders in a folder, each with its pictures; folders without any are left out."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    classes = {name: [f"{name}/{file}" for file in pictures(folder / name)] for name in names}
    return {name: files for name, files in classes.items() if files}


def read_folders(root: Path) -> ImageData | None:
    """Reads class folders, below ``train`` and ``test`` or ``val`` if there are such."""
    if not root.is_dir():
        return None
    below = {entry.name.lower(): entry.name for entry in os.scandir(root) if entry.is_dir()}
    parts: dict[str, tuple[str, dict[str, list[str]]]] = {}
    for part, names in (("train", TRAIN), ("val", VAL), ("test", TEST)):
        name = next((below[n] for n in names if n in below), None)
        if name is not None:
            parts[part] = (name, class_folders(root / name))
    notes = []
    for name, members in parts.values():
        loose = _loose(root / name)
        if loose and not members:
            raise PolycovError(
                f"{str(root / name)!r} has {loose} pictures but no class folders. Expected {name}/CLASS/*.jpg."
            )
        if loose:
            notes.append(f"{loose} pictures in {name} itself are in no class, and left out")
    parts = {part: found for part, found in parts.items() if found[1]} or {"train": ("", class_folders(root))}
    classes = sorted(parts["train"][1] if "train" in parts else {name for _, found in parts.values() for name in found})
    if not classes:
        return None
    number = {name: i for i, name in enumerate(classes)}
    made = {}
    for part, (folder, members) in parts.items():
        strange = [name for name in members if name not in number]
        if strange:
            raise PolycovError(
                f"The {part} part of {str(root)!r} has classes that training has not: "
                f"{', '.join(map(repr, strange[:5]))}{' …' if len(strange) > 5 else ''}."
            )
        pairs = [(f"{folder}/{file}" if folder else file, number[name]) for name in members for file in members[name]]
        made[part] = _samples(root, pairs)
    return ImageData(root.resolve().name, classes, made, notes=notes)


def _samples(root: Path, pairs: Iterable[tuple[str, int]]) -> Samples:
    files, labels = [], []
    for file, label in pairs:
        files.append(file)
        labels.append(label)
    return Samples(Files(root), files, labels)


def _table(path: Path) -> dict[str, str]:
    """A file of lines "key value"."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line.strip()]
    wrong = [line for line, row in zip(lines, rows, strict=False) if len(row) != 2]
    if wrong:
        raise PolycovError(f"Expected lines of two columns in {path.name!r}, got {wrong[0]!r}.")
    return {key: value.strip() for key, value in rows}


def read_cub(root: Path) -> ImageData | None:
    """Reads Caltech-UCSD Birds 200-2011 as published, with its own split."""
    root = _below(root, "CUB_200_2011", "train_test_split.txt")
    files = ["images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt"]
    if not all((root / file).is_file() for file in files):
        return None
    images, labels, split, classes = (_table(root / file) for file in files)
    numbers = {key: i for i, key in enumerate(classes)}
    parts: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    try:
        for key, path in images.items():
            parts["train" if split[key] == "1" else "test"].append((f"images/{path}", numbers[labels[key]]))
    except KeyError as error:
        raise PolycovError(f"The files of CUB-200-2011 in {str(root)!r} do not agree: no {error}.") from error
    return ImageData(
        "CUB-200-2011", list(classes.values()), {part: _samples(root, pairs) for part, pairs in parts.items()}
    )


def read_aircraft(root: Path) -> ImageData | None:
    """Reads FGVC-Aircraft as published, by variant; pictures are squeezed to a square and its middle is cut out."""
    root = _below(root, "fgvc-aircraft-2013b", "data")
    root = _below(root, "data", "images_variant_train.txt")
    if not (root / "images_variant_train.txt").is_file():
        return None
    tables = {}
    for part in ("train", "val", "test"):
        path = root / f"images_variant_{part}.txt"
        if not path.is_file():
            raise PolycovError(f"{path.name!r} of FGVC-Aircraft is not in {str(root)!r}.")
        tables[part] = _table(path)
    classes = sorted({variant for table in tables.values() for variant in table.values()})
    number = {name: i for i, name in enumerate(classes)}
    parts = {
        part: _samples(root, ((f"images/{key}.jpg", number[variant]) for key, variant in table.items()))
        for part, table in tables.items()
    }
    return ImageData("FGVC-Aircraft", classes, parts, squash=True, margin=512 / 448)


def read_cars(root: Path) -> ImageData | None:
    """Reads Stanford Cars as published: two folders with a devkit, or one folder with ``cars_annos.mat``."""
    root = _below(root, "stanford_cars", "devkit")
    if (root / "cars_annos.mat").is_file():
        meta, tables = root / "cars_annos.mat", {"all": root / "cars_annos.mat"}
    elif (root / "devkit" / "cars_train_annos.mat").is_file():
        meta = root / "devkit" / "cars_meta.mat"
        labelled = [root / "cars_test_annos_withlabels.mat", root / "devkit" / "cars_test_annos_withlabels.mat"]
        test = next((path for path in labelled if path.is_file()), None)
        if test is None:
            raise PolycovError(
                f"Stanford Cars in {str(root)!r} has no 'cars_test_annos_withlabels.mat', which holds the classes of "
                "its test pictures."
            )
        tables = {"train": root / "devkit" / "cars_train_annos.mat", "test": test}
    else:
        return None
    classes = [str(name) for name in _matlab(meta)["class_names"]]
    parts: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    for part, path in tables.items():
        for row in _matlab(path)["annotations"]:
            if part == "all":
                pair = (str(row["relative_im_path"]), int(row["class"]) - 1)
                parts["test" if int(row["test"]) else "train"].append(pair)
            else:
                parts[part].append((f"cars_{part}/{row['fname']}", int(row["class"]) - 1))
    return ImageData("Stanford Cars", classes, {part: _samples(root, pairs) for part, pairs in parts.items()})


def _matlab(path: Path) -> Any:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise PolycovError("Stanford Cars needs SciPy. Install it with: pip install scipy") from error
    try:
        return loadmat(path, squeeze_me=True)
    except Exception as error:  # whatever a broken file makes its reader raise
        raise PolycovError(f"Cannot read {str(path)!r}: {str(error).splitlines()[0]}") from error


def _below(root: Path, folder: str, sign: str) -> Path:
    """The folder itself, or the one below it that has the sign."""
    return root / folder if not (root / sign).exists() and (root / folder).is_dir() else root

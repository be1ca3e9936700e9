"""Images in class folders, with or without folders for the splits."""

import os
from collections.abc import Iterable
from pathlib import Path

from polycov.data.images import SPLITS, Files, ImageData, Samples, Split
from polycov.data.walk import count_images, list_images
from polycov.errors import PolycovError, quoted

SPLIT_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}

ClassFolders = dict[str, list[str]]  # class → files, relative to the folder of the split
SplitFolders = dict[Split, tuple[str, ClassFolders]]  # split → its folder, "" for the root itself


def read_folders(root: Path) -> ImageData | None:
    """Reads class folders, below ``train`` and ``test`` or ``val`` if these exist.

    A class folder is directly below its split; the images of its own folders, however deep, belong to it.

    Raises:
        PolycovError: if a split has images but no class folders, or classes that are not in training.
    """
    if not root.is_dir():
        return None
    found = _find_split_folders(root)
    if found and _are_classes(root, found):
        found = {}
    notes = _check_split_folders(root, found)
    folders: SplitFolders = {split: pair for split, pair in found.items() if pair[1]}
    if not folders:
        folders = {"train": ("", find_class_folders(root))}
        notes += _loose_images(root, root.resolve().name)
    trained = folders["train"][1] if "train" in folders else {name for _, names in folders.values() for name in names}
    classes = sorted(trained)
    if not classes:
        return None
    labels = {name: i for i, name in enumerate(classes)}
    splits = {}
    for split, (folder, members) in folders.items():
        _require_known(root, folder, members, labels)
        pairs = [(f"{folder}/{file}" if folder else file, labels[name]) for name in members for file in members[name]]
        splits[split] = file_samples(root, pairs)
    notes += _nested_classes(root, *next(iter(folders.values())))
    return ImageData(root.resolve().name, classes, splits, notes=notes)


def find_class_folders(folder: Path) -> ClassFolders:
    """Returns the names of the class folders in a folder, each with its images; folders without images are skipped."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    classes = {name: [f"{name}/{file}" for file in list_images(folder / name)] for name in names}
    return {name: files for name, files in classes.items() if files}


def _find_split_folders(root: Path) -> SplitFolders:
    with os.scandir(root) as entries:
        folders = {entry.name.lower(): entry.name for entry in entries if entry.is_dir()}
    split_folders: SplitFolders = {}
    for split in SPLITS:
        name = next((folders[name] for name in SPLIT_NAMES[split] if name in folders), None)
        if name is not None:
            split_folders[split] = (name, find_class_folders(root / name))
    return split_folders


def _are_classes(root: Path, folders: SplitFolders) -> bool:
    """Whether folders named like splits are classes, such as trains among other vehicles."""
    if any(classes for _, classes in folders.values()):
        return False
    names = {name for name, _ in folders.values()}
    return any(name not in names for name in find_class_folders(root))


def _check_split_folders(root: Path, folders: SplitFolders) -> list[str]:
    """Notes about images outside class folders; raises if a split has no others."""
    notes = []
    for split, (name, classes) in folders.items():
        loose = _loose_images(root / name, name)
        if loose and not classes:
            advice = "" if split == "train" else f", or rename {name!r} to hold out images of the training split"
            raise PolycovError(
                f"The images in {str(root / name)!r} are not in class folders. Expected {name}/CLASS/*.jpg{advice}."
            )
        notes += loose
    return notes


def _loose_images(folder: Path, name: str) -> list[str]:
    """A note about images in a folder itself, which have no class."""
    count = count_images(folder)
    if not count:
        return []
    images = "1 image is" if count == 1 else f"{count} images are"
    return [f"{images} skipped: directly in {name!r}, not in a class folder"]


def _require_known(root: Path, folder: str, members: ClassFolders, labels: dict[str, int]) -> None:
    unknown = [name for name in members if name not in labels]
    if unknown:
        raise PolycovError(
            f"{str(root / folder)!r} has classes without training images: {quoted(unknown)}. The training classes are "
            f"{quoted(list(labels))}. Name the folders alike, add training images, or remove these classes."
        )


def _nested_classes(root: Path, folder: str, members: ClassFolders) -> list[str]:
    """A note if all images are one level deeper than they need to be: then the inner folders may be the classes."""
    inner = {file.split("/")[1] for files in members.values() for file in files if file.count("/") > 1}
    if len(inner) < 2 or not all(file.count("/") > 1 for files in members.values() for file in files):
        return []
    if len(members) == 1:
        path = root / folder / next(iter(members))
        return [f"if the folders in it, {quoted(sorted(inner))}, are the classes, use {str(path)!r}"]
    return [
        f"the classes are the folders {quoted(list(members))}; if they should be those inside, "
        f"{quoted(sorted(inner))}, move these up one level"
    ]


def file_samples(root: Path, pairs: Iterable[tuple[str, int]]) -> Samples:
    """Returns image files, as paths relative to a folder, with their labels."""
    files, labels = [], []
    for file, label in pairs:
        files.append(file)
        labels.append(label)
    return Samples(Files(root), files, labels)


def explain_missing(root: Path) -> str:
    """Returns why a folder without class folders cannot be read, and what to do."""
    name = root.resolve().name
    count = count_images(root)
    if count:
        return (
            f"{str(root)!r} has images ({count}) but no class folders. Move those of each class into a folder of its "
            f"own, {name}/CLASS/*.jpg; polycov embed and polycov predict take images without classes."
        )
    extensions = sorted({path.suffix.lower() for path in root.rglob("*") if path.is_file() and path.suffix})
    files = f" Its files end in {', '.join(extensions[:5])}{' …' if len(extensions) > 5 else ''}." if extensions else ""
    return (
        f"There are no images in {str(root)!r}.{files} Expected {name}/CLASS/*.jpg, or {name}/train/CLASS/*.jpg and "
        f"{name}/test/CLASS/*.jpg."
    )

"""Images in tar files: webdataset shards (KEY.jpg with KEY.cls), or class folders in a tar.

The webdataset package reads shards as a stream; here any image is read by its offset, in any order.
"""

import os
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polycov.data.addresses import MAX_BYTES
from polycov.data.class_folders import SPLIT_NAMES
from polycov.data.image_files import UnreadableImageError, image_extensions
from polycov.data.images import SPLITS, ImageData, Samples, Split
from polycov.data.tar_members import iterate_members
from polycov.errors import PolycovError
from polycov.system.files import read_lines
from polycov.system.json_files import parse_json

Item = tuple[int, str, int, int]  # index of the shard, name, offset, size


@dataclass
class Tars:
    """Images in tar files, read in place at their offsets, so that access is random."""

    shards: list[Path]
    handles: dict[int, int] = field(default_factory=dict, repr=False)
    always_readable = False

    def __getstate__(self) -> dict[str, Any]:
        return {"shards": self.shards, "handles": {}}  # another process opens its own

    def open(self, item: Item) -> bytes:
        """Returns the bytes of a member.

        Raises:
            UnreadableImageError: if it is too large.
        """
        shard, _, offset, size = item
        if size > MAX_BYTES:
            raise UnreadableImageError(self.name(item), f"it has {size} bytes; at most {MAX_BYTES} are read")
        if shard not in self.handles:
            self.handles[shard] = os.open(self.shards[shard], os.O_RDONLY)
        return os.pread(self.handles[shard], size, offset)

    def name(self, item: Item) -> str:
        """Shard and member."""
        return f"{self.shards[item[0]].name}/{item[1]}"

    def stamp(self, item: Item) -> str:
        """Position in the shard, and the shard's modification time."""
        return f"{item[2]} {item[3]} {os.stat(self.shards[item[0]]).st_mtime_ns}"


def read_tars(root: Path) -> ImageData | None:
    """Reads a tar file, or a folder of them; "val" or "test" in the name of a tar is its split, else it is train.

    In webdataset shards the label of an image is the number in KEY.cls, or "label" in KEY.json; ``classes.txt`` in the
    folder names the classes, one per line. In other tars the class of an image is its folder.

    Raises:
        PolycovError: if a tar cannot be read, or there are no images with classes.
    """
    shards = sorted(root.glob("*.tar")) if root.is_dir() else [root] if root.suffix == ".tar" else []
    shards = [shard for shard in shards if shard.is_file()]  # not a pipe, which would never end
    if not shards:
        return None
    source = Tars(shards)
    labelled: list[tuple[Split, Item, str]] = []
    unlabelled = 0
    for index, shard in enumerate(shards):
        try:
            members = _read_members(source, index)
        # A damaged tar, or an invalid label.
        except (tarfile.TarError, ValueError, AttributeError, EOFError, OverflowError) as error:
            raise PolycovError(f"Cannot read the tar {str(shard)!r}: {error}.") from error
        labelled += [(_split_of(shard), item, label) for item, label in members if label]
        unlabelled += sum(not label for _, label in members)
    if not labelled:
        raise PolycovError(f"There are no images with classes in the tars of {str(root)!r}.")
    classes, indices = _find_classes(root, {label for _, _, label in labelled})
    splits: dict[Split, Samples] = {}
    for split in SPLITS:
        rows = [(item, indices[label]) for member_split, item, label in labelled if member_split == split]
        splits[split] = Samples(source, [item for item, _ in rows], [label for _, label in rows])
    notes = [f"{unlabelled} images without a label are skipped"] if unlabelled else []
    return ImageData(root.resolve().name, classes, splits, notes=notes)


def _split_of(shard: Path) -> Split:
    words = set(re.split("[^a-z]+", shard.name.lower()))
    held_out: tuple[Split, ...] = ("test", "val")
    return next((split for split in held_out if words & set(SPLIT_NAMES[split])), "train")


def _read_members(source: Tars, shard: int) -> list[tuple[Item, str]]:
    """The images of a shard with their labels; "" for an image of a webdataset without one."""
    extensions = image_extensions()
    images: list[Item] = []
    labels: dict[str, str] = {}
    length = source.shards[shard].stat().st_size
    for name, offset, size in iterate_members(str(source.shards[shard])):
        item = (shard, name, offset, size)
        extension = name.rpartition(".")[2].lower()
        if offset + size > length:
            raise ValueError(f"{name!r} ends beyond the file")
        if f".{extension}".endswith(extensions):
            images.append(item)
        elif extension == "cls":
            labels[_key(name)] = source.open(item).decode().strip()
        elif extension == "json":
            label = parse_json(source.open(item)).get("label")
            if label is not None:
                labels.setdefault(_key(name), str(label))
    if labels:
        return [(item, labels.get(_key(item[1]), "")) for item in images]
    return [(item, Path(item[1]).parent.name) for item in images]  # not a webdataset: the folder is the class


def _key(name: str) -> str:
    """The key of a sample in a webdataset: the name up to the first dot of the file name."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}"


def _find_classes(root: Path, labels: set[str]) -> tuple[list[str], dict[str, int]]:
    """The names of the classes, and the index of each label in the shards."""
    numeric = all(label.isascii() and label.isdecimal() and len(label) < 19 for label in labels)
    file = root / "classes.txt"
    if numeric and root.is_dir() and file.is_file():
        classes = read_lines(file)
        largest = max(map(int, labels))
        if largest >= len(classes):
            raise PolycovError(f"'classes.txt' names {len(classes)} classes, but a label in the shards is {largest}.")
        return classes, {label: int(label) for label in labels}
    classes = sorted(labels, key=lambda label: (int(label), label) if numeric else (0, label))
    return classes, {label: i for i, label in enumerate(classes)}

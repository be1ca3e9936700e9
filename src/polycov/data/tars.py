"""Pictures in tar files: webdataset shards (KEY.jpg beside KEY.cls), or class folders in a tar."""

import io
import json
import os
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from polycov.data.images import ImageData, Samples
from polycov.data.layouts import TEST, VAL, extensions
from polycov.errors import PolycovError

Item = tuple[int, str, int, int]  # shard, name, offset, size


@dataclass
class Tars:
    """Pictures in tar files, read in place by their offsets, so that any of them is as near as any other."""

    shards: list[Path]
    handles: dict[int, int] = field(default_factory=dict, repr=False)
    sound = False

    def __getstate__(self) -> dict[str, Any]:
        return {"shards": self.shards, "handles": {}}  # another process opens its own

    def read(self, item: Item) -> bytes:
        """Returns the bytes of a member."""
        shard, _, offset, size = item
        if shard not in self.handles:
            self.handles[shard] = os.open(self.shards[shard], os.O_RDONLY)
        return os.pread(self.handles[shard], size, offset)

    def open(self, item: Item) -> Image.Image:
        """Opens a picture."""
        return Image.open(io.BytesIO(self.read(item)))

    def name(self, item: Item) -> str:
        """Shard and member."""
        return f"{self.shards[item[0]].name}/{item[1]}"

    def stamp(self, item: Item) -> str:
        """Place in the shard, and the shard's time of change."""
        return f"{item[2]} {item[3]} {os.stat(self.shards[item[0]]).st_mtime_ns}"


def read_tars(root: Path) -> ImageData | None:
    """Reads a tar file, or a folder of them; their names tell training (train) from the rest (val, test).

    In webdataset shards the label of a picture is the number in KEY.cls, or "label" in KEY.json; ``classes.txt`` in
    the folder names the classes, one a line. In other tars the class is the folder of a picture.
    """
    shards = sorted(root.glob("*.tar")) if root.is_dir() else [root] if root.suffix == ".tar" else []
    if not shards:
        return None
    source = Tars(shards)
    found: list[tuple[str, Item, str]] = []  # part, item, class
    unlabelled = 0
    for number, shard in enumerate(shards):
        try:
            pairs = _members(source, number)
        except (tarfile.TarError, ValueError, AttributeError) as error:  # a broken tar, or a label that is none
            raise PolycovError(f"Cannot read the tar {str(shard)!r}: {error}.") from error
        found += [(_part(shard), item, name) for item, name in pairs if name]
        unlabelled += sum(not name for _, name in pairs)
    if not found:
        raise PolycovError(f"There are no pictures with classes in the tars of {str(root)!r}.")
    notes = [f"{unlabelled} pictures have no label, and are left out"] if unlabelled else []
    classes, number_of = _classes(root, {name for _, _, name in found})
    parts = {}
    for part in ("train", "val", "test"):
        rows = [(item, number_of[name]) for p, item, name in found if p == part]
        parts[part] = Samples(source, [item for item, _ in rows], [label for _, label in rows])
    return ImageData(root.resolve().name, classes, parts, notes=notes)


def _part(shard: Path) -> str:
    words = set(re.split("[^a-z]+", shard.name.lower()))
    return next((part for part, names in (("test", TEST), ("val", VAL)) if words & set(names)), "train")


def _members(source: Tars, number: int) -> list[tuple[Item, str]]:
    """The pictures of a shard, each with its class, or "" for those of a webdataset that have none."""
    known = extensions()
    images: list[Item] = []
    labels: dict[str, str] = {}
    with tarfile.open(source.shards[number]) as tar:
        for member in tar:
            item = (number, member.name, member.offset_data, member.size)
            extension = member.name.rpartition(".")[2].lower()
            if member.isfile() and f".{extension}".endswith(known):
                images.append(item)
            elif member.isfile() and extension == "cls":
                labels[_key(member.name)] = source.read(item).decode().strip()
            elif member.isfile() and extension == "json":
                label = json.loads(source.read(item)).get("label")
                if label is not None:
                    labels.setdefault(_key(member.name), str(label))
    if labels:
        return [(item, labels.get(_key(item[1]), "")) for item in images]
    return [(item, Path(item[1]).parent.name) for item in images]  # no webdataset: the folder is the class


def _key(name: str) -> str:
    """What the members of one sample of a webdataset have in common: the name up to the first dot of the file."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}"


def _classes(root: Path, found: set[str]) -> tuple[list[str], dict[str, int]]:
    """The names of the classes, and the number of each label as it stands in the shards."""
    numbers = all(name.isdigit() for name in found)
    file = root / "classes.txt"
    if numbers and root.is_dir() and file.is_file():
        classes = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        high = max(map(int, found))
        if high >= len(classes):
            raise PolycovError(f"'classes.txt' names {len(classes)} classes, but a label in the shards is {high}.")
        return classes, {name: int(name) for name in found}
    classes = sorted(found, key=lambda name: (int(name), name) if numbers else (0, name))
    return classes, {name: i for i, name in enumerate(classes)}

"""A dataset of images: where each image is, its class, and the splits train, val and test."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from PIL import Image

from polycov.data.image_files import Content, UnreadableImageError, read_image
from polycov.errors import PolycovError, quoted

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


class Source(Protocol):
    """Where images come from. An item is what the source needs to find one of them."""

    def open(self, item: Any) -> Content:
        """Returns an image, or the path or bytes of a file of one."""

    def name(self, item: Any) -> str:
        """Returns the name of an image, unique within the source."""

    def stamp(self, item: Any) -> str:
        """Returns a text that changes when the image does."""

    @property
    def always_readable(self) -> bool:
        """Whether images can never be broken."""


@dataclass(frozen=True)
class Files:
    """Image files below a folder. An item is a path relative to it."""

    root: Path
    always_readable = False

    def open(self, item: str) -> Path:
        """The path of the file."""
        return self.root / item

    def name(self, item: str) -> str:
        """The relative path."""
        return item

    def stamp(self, item: str) -> str:
        """Folder, size and modification time."""
        try:
            status = os.stat(os.path.join(self._resolved, item))
        except (OSError, ValueError):  # also a name that no file can have
            return "missing"
        return f"{self._resolved} {status.st_size} {status.st_mtime_ns}"

    @cached_property
    def _resolved(self) -> str:
        """The folder without links, looked up once: there may be a million images in it."""
        return str(self.root.resolve())


def read_item(source: Source, item: Any, *, check: bool = False, least: int | None = None) -> Image.Image:
    """Returns an image of a source as `read_image` does; with ``check`` at a small size, to see whether it can be read.

    Raises:
        UnreadableImageError: if it cannot be read; the message names it.
        ConnectionError: if it is elsewhere and cannot be reached.
    """
    name = source.name(item)
    try:
        content = source.open(item)
    except ConnectionError:
        raise
    except OSError as error:
        raise UnreadableImageError(name, str(error.strerror or error)) from error
    return read_image(content, name, check=check, least=least)


@dataclass(frozen=True)
class Samples:
    """The images of one split, by index.

    Attributes:
        source: where they come from.
        items: one per image, for the source.
        labels: the index of the class of each image.
    """

    source: Source
    items: Sequence[Any]
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.items)

    def name(self, index: int) -> str:
        """Returns the name of an image."""
        return self.source.name(self.items[index])

    def image(self, index: int, *, check: bool = False, least: int | None = None) -> Image.Image:
        """Returns an image: see `read_item`."""
        return read_item(self.source, self.items[index], check=check, least=least)

    def select(self, indices: Iterable[int]) -> "Samples":
        """Returns the images with these indices."""
        chosen = list(indices)
        return Samples(self.source, [self.items[i] for i in chosen], [self.labels[i] for i in chosen])


@dataclass(frozen=True)
class ImageData:
    """Images with classes, in splits.

    Attributes:
        name: name of the data.
        classes: their names; a label is an index into them.
        splits: "train", "val" (held out of training, for every choice; may be empty) and "test" (only ever measured).
        squash: whether images are squashed to a square rather than cropped, as is usual for this data.
        resize_margin: the side to resize to over the side of the crop.
        size: the default side of the images that a network sees.
        notes: decisions made while reading, for the user.
    """

    name: str
    classes: list[str]
    splits: dict[Split, Samples]
    squash: bool = False
    resize_margin: float = 1.0
    size: int = 320
    notes: list[str] = field(default_factory=list)

    def __getitem__(self, split: Split) -> Samples:
        return self.splits[split]

    def summary(self) -> str:
        """Returns name, classes and images in a few words."""
        counts = ", ".join(f"{len(samples)} {split}" for split, samples in self.splits.items() if len(samples))
        return f"{self.name}, {len(self.classes)} classes, images: {counts}"

    def all_samples(self) -> Samples:
        """Returns the images of all splits in the order of their names, however they are split."""
        samples = join(list(self.splits.values()))
        return samples.select(sorted(range(len(samples)), key=samples.name))

    def fingerprint(self, *, stamps: bool = False) -> str:
        """Returns a digest of names, classes and splits; with ``stamps`` one of the images, however they are split."""
        digest = hashlib.sha256()
        if stamps:
            samples = self.all_samples()
            for i, item in enumerate(samples.items):
                digest.update(os.fsencode(f"{samples.name(i)}\0{samples.source.stamp(item)}\n"))
        else:
            digest.update(os.fsencode("\n".join(self.classes)))
            for split, samples in self.splits.items():
                for i, label in enumerate(samples.labels):
                    digest.update(os.fsencode(f"{split}\0{samples.name(i)}\0{label}\n"))
        return digest.hexdigest()

    def without(self, names: set[str]) -> "ImageData":
        """Returns the data without the images of these names."""
        splits = {
            split: samples.select(i for i in range(len(samples)) if samples.name(i) not in names)
            for split, samples in self.splits.items()
        }
        return replace(self, splits=splits)


def join(splits: Sequence[Samples]) -> Samples:
    """Returns the images of several splits of one source."""
    items = [item for samples in splits for item in samples.items]
    return Samples(splits[0].source, items, [label for samples in splits for label in samples.labels])


def require_trainable(data: ImageData) -> ImageData:
    """Returns the data if a classifier can be trained and tested on it.

    Raises:
        PolycovError: if it has fewer than two classes, duplicate class names, a class without training images, or no
            test images.
    """
    require_classes(data)
    counts = Counter(name.strip().casefold() for name in data.classes)
    duplicates = [name for name in data.classes if counts[name.strip().casefold()] > 1]
    if duplicates:
        raise PolycovError(f"Duplicate class names in {data.name!r}: {', '.join(map(repr, duplicates))}. Rename them.")
    for split in ("train", "test"):
        if not len(data[split]):
            raise PolycovError(f"There are no {split} images in {data.name!r}.")
    untrained = missing_classes(data, "train")
    if untrained:
        raise PolycovError(f"There are no training images of {quoted(untrained)} in {data.name!r}.")
    return data


def require_classes(data: ImageData) -> None:
    """Refuses data with fewer than two classes; its notes may say why there are no more.

    Raises:
        PolycovError: if it has fewer.
    """
    if len(data.classes) < 2:
        advice = "; ".join(data.notes) or "add images of another class"
        given = f"only {data.classes[0]!r}" if data.classes else "none"
        raise PolycovError(f"Expected at least two classes in {data.name!r}, got {given}: {advice}.")


def require_validation(data: ImageData) -> ImageData:
    """Returns the data if it has validation images.

    Raises:
        PolycovError: if it has none.
    """
    if len(data["val"]):
        return data
    if max(Counter(data["train"].labels).values(), default=0) > 1:
        raise PolycovError("Everything is chosen on validation images: expected --val-fraction above 0.")
    raise PolycovError(
        f"There are no validation images in {data.name!r}, on which everything is chosen: no class has a second "
        "training image to hold out. Add images, at least 3 per class: one each to train, validate and test."
    )


def missing_classes(data: ImageData, split: Split) -> list[str]:
    """Returns the classes that have no images in a split."""
    present = set(data[split].labels)
    return [name for i, name in enumerate(data.classes) if i not in present]


def hold_out(samples: Samples, fraction: float, seed: int) -> tuple[Samples, Samples]:
    """Splits images class by class: returns the remaining ones, and the ``fraction`` held out.

    The split depends only on the names, the fraction and the seed. Each class keeps at least one image.
    """
    order = sorted(range(len(samples)), key=samples.name)
    by_class: dict[int, list[int]] = {}
    for i in order:
        by_class.setdefault(samples.labels[i], []).append(i)
    generator = torch.Generator().manual_seed(seed)
    held_out: set[int] = set()
    for label in sorted(by_class):
        members = by_class[label]
        count = min(round(fraction * len(members)) or int(fraction > 0), len(members) - 1)
        held_out.update(members[i] for i in torch.randperm(len(members), generator=generator)[:count].tolist())
    return samples.select(i for i in order if i not in held_out), samples.select(sorted(held_out, key=samples.name))

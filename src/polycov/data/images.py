"""A set of pictures: where each one is, its class, and the parts training, validation and test."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image, ImageOps

from polycov.errors import PolycovError

Part = str  # "train", "val" or "test"


class Source(Protocol):
    """Where pictures come from; an item is whatever the source needs to find one of them."""

    def open(self, item: Any) -> Image.Image:
        """Returns a picture, perhaps not decoded yet."""

    def name(self, item: Any) -> str:
        """Returns the name of a picture, unlike all others of the source."""

    def stamp(self, item: Any) -> str:
        """Returns what changes when the picture does."""

    @property
    def sound(self) -> bool:
        """Whether no picture can be broken."""


@dataclass(frozen=True)
class Files:
    """Picture files below a folder; an item is a path relative to it."""

    root: Path
    sound = False

    def open(self, item: str) -> Image.Image:
        """Opens a file."""
        return Image.open(self.root / item)

    def name(self, item: str) -> str:
        """The relative path."""
        return item

    def stamp(self, item: str) -> str:
        """Folder, size and time of change."""
        try:
            status = os.stat(self.root / item)
        except OSError:
            return "not there"
        return f"{self.root.resolve()} {status.st_size} {status.st_mtime_ns}"


@dataclass(frozen=True)
class Samples:
    """Pictures of one part, by number.

    Attributes:
        source: where they come from.
        items: what the source finds them by.
        labels: the number of the class of each.
    """

    source: Source
    items: Sequence[Any]
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.items)

    def name(self, index: int) -> str:
        """Returns the name of a picture."""
        return self.source.name(self.items[index])

    def image(self, index: int) -> Image.Image:
        """Returns a picture in RGB, upright.

        Raises:
            PolycovError: if it cannot be read; the message has its name.
        """
        try:
            return decode(self.source.open(self.items[index]))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise PolycovError(f"Cannot read the image {self.name(index)!r}: {_reason(error)}.") from error

    def select(self, indices: Iterable[int]) -> "Samples":
        """Returns some of the pictures."""
        chosen = list(indices)
        return Samples(self.source, [self.items[i] for i in chosen], [self.labels[i] for i in chosen])


def decode(image: Image.Image) -> Image.Image:
    """Returns a picture decoded, turned upright as its camera says, without transparency, in RGB."""
    with image:
        image.load()
        upright = _eight_bits(ImageOps.exif_transpose(image))
        if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
            upright = upright.convert("RGBA")
            white = Image.new("RGBA", upright.size, "white")
            upright = Image.alpha_composite(white, upright)
        return upright.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """A picture of 16 or 32 bits a channel with 8, by its range; converting it plainly would cut off what is above."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image, dtype=np.float64)
    high = float(values.max(initial=0))
    tops = (1.0, 255.0) if image.mode == "F" else (255.0, 65535.0)
    top = next((top for top in tops if high <= top), None)
    if top is None or not values.min(initial=0) >= 0:
        raise ValueError(f"its values go from {values.min():g} to {high:g}, and a picture's from 0 to {tops[-1]:g}")
    top = 65535.0 if image.mode.startswith("I;16") else top
    return Image.fromarray(np.round(values * (255 / top)).astype(np.uint8))


def _reason(error: Exception) -> str:
    """A short reason; Pillow's for a file that is no picture names the whole path again."""
    if isinstance(error, FileNotFoundError):
        return "it is not there"
    return "it is not a picture" if "cannot identify" in str(error) else str(error).rstrip(".")


@dataclass(frozen=True)
class ImageData:
    """Pictures with classes, in parts.

    Attributes:
        name: of the data.
        classes: their names; a label is a number into them.
        parts: "train", "val" (held out of training, for every choice; may be empty) and "test" (only ever measured).
        squash: whether pictures are to be made square by squeezing rather than cropping, as is usual for this data.
        margin: the side to resize to over the side that is cut out.
        side: of the pictures as a network is to see them, if nothing else is asked for.
        notes: what was decided in reading, to tell the user.
    """

    name: str
    classes: list[str]
    parts: dict[Part, Samples]
    squash: bool = False
    margin: float = 1.0
    side: int = 320
    notes: list[str] = field(default_factory=list)

    def __getitem__(self, part: Part) -> Samples:
        return self.parts[part]

    def everything(self) -> Samples:
        """Returns the pictures of all parts in the order of their names, whatever the split."""
        whole = join(list(self.parts.values()))
        return whole.select(sorted(range(len(whole)), key=whole.name))

    def fingerprint(self, *, stamps: bool = False) -> str:
        """Returns a digest of the names, classes and parts; with ``stamps`` of the pictures, whatever their parts."""
        digest = hashlib.sha256()
        if stamps:
            whole = self.everything()
            for i, item in enumerate(whole.items):
                digest.update(os.fsencode(f"{whole.name(i)}\0{whole.source.stamp(item)}\n"))
        else:
            digest.update(os.fsencode("\n".join(self.classes)))
            for part, samples in self.parts.items():
                for i, label in enumerate(samples.labels):
                    digest.update(os.fsencode(f"{part}\0{samples.name(i)}\0{label}\n"))
        return digest.hexdigest()

    def without(self, broken: set[str]) -> "ImageData":
        """Returns the data without the pictures of these names."""
        parts = {
            part: samples.select(i for i in range(len(samples)) if samples.name(i) not in broken)
            for part, samples in self.parts.items()
        }
        return replace(self, parts=parts)


def join(parts: Sequence[Samples]) -> Samples:
    """Returns all pictures of several parts of one source."""
    items = [item for part in parts for item in part.items]
    return Samples(parts[0].source, items, [label for part in parts for label in part.labels])


def check(data: ImageData) -> ImageData:
    """Returns the data if one can learn from it.

    Raises:
        PolycovError: if it has fewer than two classes, two of the same name, a class without training pictures, or
            no test pictures.
    """
    if len(data.classes) < 2:
        raise PolycovError(f"Expected at least two classes in {data.name!r}, got {len(data.classes)}: {data.classes}.")
    names = Counter(name.strip().casefold() for name in data.classes)
    twice = [name for name in data.classes if names[name.strip().casefold()] > 1]
    if twice:
        raise PolycovError(f"Expected classes of different names in {data.name!r}, got {', '.join(map(repr, twice))}.")
    for part in ("train", "test"):
        if not len(data[part]):
            raise PolycovError(f"There are no {part} pictures in {data.name!r}.")
    seen = set(data["train"].labels)
    unseen = [name for i, name in enumerate(data.classes) if i not in seen]
    if unseen:
        raise PolycovError(f"There are no training pictures of {', '.join(map(repr, unseen[:5]))} in {data.name!r}.")
    return data


def hold_out(samples: Samples, fraction: float, seed: int) -> tuple[Samples, Samples]:
    """Splits pictures class by class: returns those that stay, and the ``fraction`` held out.

    The split depends on the names, the seed and the fraction alone. Each class keeps at least one.
    """
    order = sorted(range(len(samples)), key=samples.name)
    by_class: dict[int, list[int]] = {}
    for i in order:
        by_class.setdefault(samples.labels[i], []).append(i)
    generator = torch.Generator().manual_seed(seed)
    held: list[int] = []
    for label in sorted(by_class):
        members = by_class[label]
        count = min(round(fraction * len(members)) or int(fraction > 0), len(members) - 1)
        held += [members[i] for i in torch.randperm(len(members), generator=generator)[:count].tolist()]
    out = set(held)
    return samples.select(i for i in order if i not in out), samples.select(sorted(out, key=samples.name))

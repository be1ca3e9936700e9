"""What the files of a comparison hold, checked when they are read."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from polycov.errors import PolycovError
from polycov.system.structure import Structured, structure

Gallery = dict[str, Any]
IMAGE = "data:image/jpeg;base64,"


class _Part:
    """Base of values that are read in part: names that are not listed are ignored."""

    __pydantic_config__: ClassVar[Any] = {"extra": "ignore", "strict": True}


@dataclass(frozen=True)
class Network(_Part):
    """The network."""

    backbone: str
    weights: str


@dataclass(frozen=True)
class Settings(_Part):
    """The configuration that all settings share."""

    network: Network


@dataclass(frozen=True)
class Identity(_Part):
    """What all records have in common.

    Attributes:
        head: how features are judged.
        config: configuration.
        protocol: options of the head.
        unseen_classes: share of classes that are held out.
    """

    head: str
    config: Settings
    protocol: dict[str, Any] | None = None
    unseen_classes: float = 0.0


@dataclass(frozen=True)
class Facts(_Part):
    """What ``config.json`` says of a comparison.

    Attributes:
        identity: what all records have in common.
        data: name of the data.
        classes: names of the classes.
        counts: images per split.
        notes: notes about the data.
        command: the command that measured it.
        train: words of the command that trains a classifier.
    """

    identity: Identity
    data: str
    classes: list[str]
    counts: dict[str, int]
    notes: list[str] = field(default_factory=list)
    command: str = ""
    train: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LocalFeatures(Structured):
    """Facts about local features: where they come from, and how many an image of this size has."""

    stage: str
    size: int
    locations: int
    channels: int


@dataclass(frozen=True)
class Judged(Structured):
    """The images, or episodes, that a seed judged."""

    val: list[int]
    test: list[int]


@dataclass(frozen=True)
class Entry(Structured):
    """An image of the gallery; ``label`` stands for "class", which Python reserves."""

    index: int
    image: str
    name: str
    label: str
    prediction: str
    explanation: str = ""


@dataclass(frozen=True)
class Pair(Structured):
    """Two classes that are confused."""

    times: int
    one: Entry
    other: Entry


@dataclass(frozen=True)
class Entries(Structured):
    """All images of the gallery."""

    hardest: list[Entry]
    predictions: list[Entry]
    pairs: list[Pair]
    of: str = ""


def check_gallery(gallery: Gallery, source: str) -> Gallery:
    """Returns a gallery if it can go into a page.

    Raises:
        PolycovError: if it is damaged, or an image is a link instead of a data URL.
    """
    found = structure(Entries, _renamed(gallery), source)
    pairs = (side for pair in found.pairs for side in (pair.one, pair.other))
    for entry in (*found.hardest, *found.predictions, *pairs):
        if not entry.image.startswith(IMAGE):
            raise PolycovError(f"Expected images in {source} to begin with {IMAGE!r}, got {entry.image[:40]!r}.")
    return gallery


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {"label" if key == "class" else key: _renamed(inner) for key, inner in value.items()}

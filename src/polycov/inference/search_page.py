"""The page of a search: thumbnails under headings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polycov.data.anywhere import Anywhere, Item
from polycov.data.images import Samples
from polycov.errors import PolycovError
from polycov.system.pages import data_url, short_name, write_page
from polycov.system.text import valid_utf8

SIDE = 220  # pixels of a thumbnail
MOST = 1000  # thumbnails on a page


@dataclass(frozen=True)
class Picture:
    """An image on the page.

    Attributes:
        name: name of the image.
        note: a few words below it.
        place: where it is; None if that is unknown.
    """

    name: str
    note: str
    place: Item | None


@dataclass(frozen=True)
class Section:
    """A heading with images below it."""

    title: str
    pictures: Sequence[Picture]


def write_search_page(path: str | Path, title: str, lead: str, sections: Sequence[Section]) -> Path:
    """Writes a page of thumbnails; returns its path. Images that cannot be read are named without a picture.

    Raises:
        MissingDependencyError: if Jinja2 is not installed.
    """
    shown, left = _cut(sections)
    return write_page(
        path,
        "polycov.inference",
        "search_page",
        title=title,
        lead=valid_utf8(lead),
        left=left,
        sections=[
            {"title": valid_utf8(section.title), "pictures": list(map(_shown, section.pictures))} for section in shown
        ],
    )


def _cut(sections: Sequence[Section]) -> tuple[list[Section], int]:
    """The sections that fit on a page, and how many are left."""
    shown: list[Section] = []
    count = 0
    for section in sections:
        count += len(section.pictures)
        if count > MOST and shown:
            break
        shown.append(Section(section.title, section.pictures[:MOST]))
    return shown, len(sections) - len(shown)


def _shown(picture: Picture) -> dict[str, Any]:
    name = valid_utf8(picture.name)
    return {"name": short_name(name), "full": name, "note": picture.note, "source": _thumbnail(picture)}


def _thumbnail(picture: Picture) -> str:
    """The image as a small JPEG in a data URL; empty if it cannot be read any more."""
    if picture.place is None:
        return ""
    try:
        image = Samples(Anywhere(), [picture.place], [0]).image(0)
    except (PolycovError, OSError):
        return ""
    return data_url(image, side=SIDE, quality=80)

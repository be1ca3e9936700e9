"""The page of a search: thumbnails in one self-contained file that needs no network."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from polycov.data.anywhere import Anywhere, Item
from polycov.data.images import Samples
from polycov.errors import MissingDependencyError, PolycovError
from polycov.system.files import write_text

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
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingDependencyError("The page needs Jinja2. Install it with: pip install 'polycov[train]'") from error
    shown, left = _cut(sections)
    template = files("polycov.inference").joinpath("search_page.html").read_text("utf-8")
    text = (
        Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            title=title,
            lead=_text(lead),
            left=left,
            sections=[
                {"title": _text(section.title), "pictures": list(map(_shown, section.pictures))} for section in shown
            ],
        )
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


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
    parts = Path(_text(picture.name)).parts
    return {
        "name": "/".join(parts[-2:]),
        "full": _text(picture.name),
        "note": picture.note,
        "source": _thumbnail(picture),
    }


def _thumbnail(picture: Picture) -> str:
    """The image as a small JPEG in a data URL; empty if it cannot be read any more."""
    if picture.place is None:
        return ""
    try:
        image = Samples(Anywhere(), [picture.place], [0]).image(0)
    except (PolycovError, OSError):
        return ""
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "jpeg", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def _text(name: str) -> str:
    """Bytes of file names that are not UTF-8 become replacement characters."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

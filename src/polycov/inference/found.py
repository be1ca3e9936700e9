"""What a search finds, as a table or a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polycov.data.anywhere import Item
from polycov.inference.gallery import Gallery
from polycov.inference.search_page import Picture, Section, write_search_page
from polycov.system.pages import short_name
from polycov.system.tables import Cell, Table


@dataclass(frozen=True)
class Hit:
    """An image that was found.

    Attributes:
        image: its name in the embedding.
        cosine: of the angle between the features; 1 for equal ones.
    """

    image: str
    cosine: float


@dataclass(frozen=True)
class Found:
    """The nearest images of one query.

    Attributes:
        query: name of the image that was searched for.
        hits: the nearest images, the nearest first.
    """

    query: str
    hits: tuple[Hit, ...]


@dataclass(frozen=True)
class SearchResult:
    """The nearest images of each query. A notebook shows it as a table.

    Attributes:
        found: one for each query.
        exact: whether every feature was compared; an index looks at some.
        folder: of the embedding.
        places: where the queries are.
    """

    found: tuple[Found, ...]
    exact: bool
    folder: Path
    places: tuple[Item, ...]

    def table(self) -> Table:
        """Returns a row for each image that was found."""
        rows: list[list[Cell]] = [
            [one.query, rank, hit.image, hit.cosine] for one in self.found for rank, hit in enumerate(one.hits, 1)
        ]
        return Table(("query", "rank", "image", "cosine"), rows)

    def page(self, path: str | Path) -> Path:
        """Writes a page with thumbnails, one file that needs no network; returns its path."""
        gallery = Gallery(self.folder)
        items = gallery.items(hit.image for one in self.found for hit in one.hits)
        sections = [
            Section(
                f"Nearest to {short_name(one.query)}",
                [Picture(one.query, "query", place), *_pictures(one.hits, items)],
            )
            for one, place in zip(self.found, self.places, strict=True)
        ]
        how = "all features compared" if self.exact else "found by an index, cosines exact"
        lead = f"{len(gallery)} images in {self.folder}; {how}. Numbers are cosines: 1 for equal features."
        return write_search_page(path, "Nearest images", lead, sections)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@dataclass(frozen=True)
class Duplicates:
    """Groups of images that are equal, or nearly so. A notebook shows it as a table.

    Attributes:
        groups: the images of each, with the largest cosine to another image of the group; the most alike first.
        threshold: the least cosine of two images in a group.
        folder: of the embedding.
    """

    groups: tuple[tuple[Hit, ...], ...]
    threshold: float
    folder: Path

    def __str__(self) -> str:
        more = sum(len(group) - 1 for group in self.groups)
        groups = "1 group" if len(self.groups) == 1 else f"{len(self.groups)} groups"
        images = "1 image" if more == 1 else f"{more} images"
        return f"{groups}, {images} too many, cosine of at least {self.threshold:g}"

    def table(self) -> Table:
        """Returns a row for each image that has a duplicate."""
        rows: list[list[Cell]] = [
            [number, hit.image, hit.cosine] for number, group in enumerate(self.groups, 1) for hit in group
        ]
        return Table(("group", "image", "cosine"), rows)

    def page(self, path: str | Path) -> Path:
        """Writes a page with thumbnails, one file that needs no network; returns its path."""
        items = Gallery(self.folder).items(hit.image for group in self.groups for hit in group)
        sections = [Section(f"Group {number}", _pictures(group, items)) for number, group in enumerate(self.groups, 1)]
        lead = f"{self}, in {self.folder}. Numbers are the largest cosine to another image of the group."
        return write_search_page(path, "Duplicates", lead, sections)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _pictures(hits: Sequence[Hit], items: dict[str, Item]) -> list[Picture]:
    return [Picture(hit.image, f"{hit.cosine:.3f}", items.get(hit.image)) for hit in hits]

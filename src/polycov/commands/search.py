"""``polycov search``."""

from dataclasses import dataclass
from pathlib import Path

from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.errors import PolycovError
from polycov.inference.duplicates import THRESHOLD, find_duplicates
from polycov.inference.found import Duplicates, SearchResult
from polycov.inference.search import How, search
from polycov.models.backbones import load_plugin
from polycov.system.tables import Table

SHOWN = 200  # rows in a terminal


@dataclass(frozen=True)
class Search:
    """Find the nearest images in an embedding, by the cosine of the angle between features; or its duplicates."""

    embeddings: Path
    """Folder written by polycov embed."""
    images: tuple[str, ...] = ()
    """Images to search for, or folders, tars, Parquet files or URLs of images; none with --duplicates."""
    top: int = 10
    """How many images to find for each."""
    duplicates: bool = False
    """List equal and nearly equal images within the embedding instead: all pairs are compared."""
    threshold: float = THRESHOLD
    """With --duplicates: the least cosine of two images that count as duplicates."""
    out: Path | None = None
    """A table (.csv) or a page with thumbnails (.html) to write instead of showing a table."""
    index: How = "auto"
    """exact (compares all features), ivfpq (an index kept in the folder of the embedding; needs faiss), or auto: ivfpq
    for a million images or more."""
    model: Path | None = None
    """The run that made the embedding; default: where it was at the time."""
    device: str = "auto"
    """auto (CUDA, then MPS, then CPU), or a device such as cuda:1."""
    plugin: str | None = None
    """A Python file or module to import first, which registers the backbone with timm."""


def run(arguments: list[str]) -> None:
    """Searches an embedding."""
    options = parse(Search, "search", arguments, positional={"embeddings": "EMBEDDINGS", "images": "[IMAGE…]"})
    if options.out is not None and options.out.suffix not in (".csv", ".html"):
        raise PolycovError(f"Expected --out to be a .csv or .html file, got {str(options.out)!r}.")
    if options.duplicates == bool(options.images):
        raise PolycovError("Expected images to search for, or --duplicates without images.")
    load_plugin(options.plugin)
    terminal = Terminal()
    if options.duplicates:
        duplicates = find_duplicates(options.embeddings, threshold=options.threshold, progress=terminal.progress)
        _show(duplicates, options.out, terminal)
        terminal.write(str(duplicates))
        return
    result = search(
        options.embeddings,
        options.images,
        top=options.top,
        index=options.index,
        model=options.model,
        device=options.device,
        progress=terminal.progress,
    )
    _show(result, options.out, terminal)


def _show(result: SearchResult | Duplicates, out: Path | None, terminal: Terminal) -> None:
    table = result.table()
    if out is None:
        rows = [[f"{cell:.3f}" if isinstance(cell, float) else cell for cell in row] for row in table.rows[:SHOWN]]
        terminal.table(Table(table.columns, rows), sections=True)
        if len(table.rows) > SHOWN:
            terminal.write(f"{len(table.rows) - SHOWN} more rows: write them with -o FILE.csv.")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".html":
        result.page(out)
    else:
        table.to_csv(out)
    terminal.write(f"written: {out}")

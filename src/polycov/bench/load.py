"""Load: many images, many names, many classes. Memory must not grow with images, nor time faster than their number."""

import os
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from polycov.bench.many_images import SMALL, Layout, embed_images, jpeg
from polycov.bench.tables import Row
from polycov.data.read import read_data
from polycov.data.walk import list_images
from polycov.inference.evaluate import evaluate
from polycov.training.train import train

NAMES, CLASSES = 500_000, 5_000
PER_CLASS, LINKS = 8, 10_000


def load(share: float = 1.0, images: int = 100_000, layouts: Sequence[Layout] = ("folders",)) -> Iterator[Row]:
    """Yields a row for each measurement: what was done, how many, seconds, rates and memory.

    Generated images are embedded, with a kill half-way; 500,000 names in 5,000 class folders are listed, split and
    fingerprinted; a classifier of 5,000 classes is fitted and evaluated. The network is tiny: all that remains is the
    machinery.

    Args:
        share: of the names and classes; 0 for none of them.
        images: to embed, at least 640.
        layouts: folders of image files, or tar shards.
    """
    for layout in layouts:
        with TemporaryDirectory() as folder:
            yield embed_images(Path(folder), images, layout)
    if not share:
        return
    names, classes = (max(int(share * count), 640) for count in (NAMES, CLASSES * PER_CLASS))
    classes //= PER_CLASS
    with TemporaryDirectory() as folder:
        yield from list_names(Path(folder), names, classes)
    with TemporaryDirectory() as folder:
        yield from many_classes(Path(folder), classes)


def list_names(folder: Path, count: int, classes: int) -> Iterator[Row]:
    """Lists, splits and fingerprints image files that are links to a few."""
    link_images(folder / "images", count, classes)
    yield measured("list names", count, lambda: list_images(folder / "images"))
    yield measured("read class folders and split", count, lambda: read_data(folder / "images"))
    data = read_data(folder / "images")
    yield measured("fingerprint", count, lambda: data.fingerprint(stamps=True))


def many_classes(folder: Path, classes: int) -> Iterator[Row]:
    """Fits and evaluates a classifier of many classes, with a few images of each."""
    count = classes * PER_CLASS
    link_images(folder / "images", count, classes)
    run, cache = folder / "run", folder / "cache"
    options: dict[str, Any] = {"probe": True, "pool": "ipccp-ts", "dim": 256, "channels": 16, **SMALL}
    yield measured("train --probe", count, lambda: train(folder / "images", run, cache=cache, **options))
    yield measured("evaluate", count, lambda: evaluate(run, workers=0))


def link_images(folder: Path, count: int, classes: int) -> None:
    """Makes class folders whose images are hard links to a few."""
    source = folder.parent / "source"
    source.mkdir()
    for label in range(classes):
        inner = folder / f"class-{label:05d}"
        inner.mkdir(parents=True)
        for i in range(label, count, classes):
            original = source / f"{i // LINKS}-{label % 64}.jpg"
            if not original.exists():
                original.write_bytes(jpeg(i))
            os.link(original, inner / f"{i:06d}.jpg")


def measured(what: str, count: int, work: Any) -> Row:
    """Returns the row of some work: its seconds, and the peak of memory so far."""
    begin = time.perf_counter()
    work()
    seconds = time.perf_counter() - begin
    row: Row = {"what": what, "count": count, "seconds": seconds, "rate": count / seconds, "rate_at_the_end": None}
    return row | {"mib": None, "mib_at_the_end": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}

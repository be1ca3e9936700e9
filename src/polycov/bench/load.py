"""Load: many images, many names, many classes. Memory must not grow with images, nor time faster than their number."""

import io
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from polycov.bench.tables import Row
from polycov.data.read import read_data
from polycov.data.walk import list_images
from polycov.inference.embed import embed
from polycov.inference.evaluate import evaluate
from polycov.progress import Progress, Task
from polycov.training.train import train

IMAGES, NAMES, CLASSES = 100_000, 500_000, 5_000
PER_FOLDER, PER_CLASS, LINKS = 1_000, 8, 10_000
SMALL: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "size": 32, "workers": 0}


def load(share: float = 1.0) -> Iterator[Row]:
    """Yields a row for each measurement: what was done, how many, seconds, rates and memory.

    100,000 generated images are embedded; 500,000 names in 5,000 class folders are listed, split and fingerprinted; a
    classifier of 5,000 classes is fitted and evaluated. The network is tiny: all that remains is the machinery.

    Args:
        share: of these numbers.
    """
    images, names, classes = (max(int(share * count), 640) for count in (IMAGES, NAMES, CLASSES * PER_CLASS))
    classes //= PER_CLASS
    with TemporaryDirectory() as folder:
        yield embed_images(Path(folder), images)
    with TemporaryDirectory() as folder:
        yield from list_names(Path(folder), names, classes)
    with TemporaryDirectory() as folder:
        yield from many_classes(Path(folder), classes)


def embed_images(folder: Path, count: int) -> Row:
    """Embeds generated images; returns rates and peaks of memory in the first tenth, and at the end."""
    write_images(folder / "images", count)
    moments = Moments()
    embed("ipccp-ts", folder / "images", folder / "features", dim=256, batch_size=64, progress=moments, **SMALL)
    tenth = [moment for moment in moments.seen if moment[1] <= count / 10]
    last = [moment for moment in moments.seen if moment[1] >= 0.9 * count]
    return {
        "what": "embed images",
        "count": count,
        "seconds": moments.seen[-1][0] - moments.seen[0][0],
        "rate": moments.rate(tenth),
        "rate_at_the_end": moments.rate(last),
        "mib": max(memory for *_, memory in tenth),
        "mib_at_the_end": max(memory for *_, memory in moments.seen),
    }


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


def write_images(folder: Path, count: int) -> None:
    """Writes generated images of 32 × 32 pixels, a thousand to a folder."""
    for i in range(count):
        if i % PER_FOLDER == 0:
            inner = folder / f"{i // PER_FOLDER:04d}"
            inner.mkdir(parents=True)
        (inner / f"{i:06d}.jpg").write_bytes(_jpeg(i))


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
                original.write_bytes(_jpeg(i))
            os.link(original, inner / f"{i:06d}.jpg")


def _jpeg(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def measured(what: str, count: int, work: Any) -> Row:
    """Returns the row of some work: its seconds, and the peak of memory so far."""
    begin = time.perf_counter()
    work()
    seconds = time.perf_counter() - begin
    row: Row = {"what": what, "count": count, "seconds": seconds, "rate": count / seconds, "rate_at_the_end": None}
    return row | {"mib": None, "mib_at_the_end": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


@dataclass
class Moments(Progress):
    """Remembers when so many steps were done, and the memory at that moment in MiB."""

    seen: list[tuple[float, int, float]] = field(default_factory=list)

    def task(self, description: str, total: int) -> Task:
        """Begins a task that is watched."""
        return _Watched(description, total, self.seen)

    @staticmethod
    def rate(moments: list[tuple[float, int, float]]) -> float:
        """Returns the steps per second between the first and the last moment."""
        (begin, first, _), (end, last, _) = moments[0], moments[-1]
        return (last - first) / (end - begin)


class _Watched(Task):
    def __init__(self, description: str, total: int, seen: list[tuple[float, int, float]]) -> None:
        super().__init__(description, total)
        self._seen = seen

    def update(self, completed: int, status: str = "") -> None:
        super().update(completed, status)
        self._seen.append((time.perf_counter(), completed, resident()))


def resident() -> float:
    """Returns the memory of this process in MiB."""
    statistics = Path("/proc/self/statm")
    if not statistics.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return int(statistics.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

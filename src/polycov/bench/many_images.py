"""Embedding very many generated images, killed half-way: rate and memory must not change with their number."""

import io
import multiprocessing
import os
import resource
import tarfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from polycov.bench.tables import Row
from polycov.inference.embed import embed
from polycov.inference.embedding_folder import EmbeddingFolder
from polycov.progress import Progress, Task

Layout = Literal["folders", "tar"]
Moment = tuple[float, int, float]  # seconds, images done, MiB
PER_FOLDER, PER_TAR, DIFFERENT = 1_000, 10_000, 1_000
SMALL: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "size": 32, "workers": 0}


def embed_images(folder: Path, count: int, layout: Layout = "folders") -> Row:
    """Embeds generated images in a process that is killed half-way, and in a second one that resumes.

    Returns:
        rates and peaks of memory in the first tenth, and at the end.
    """
    write_images(folder / "images", count, layout)
    first = _watched_embedding(folder, kill_at=count // 2)
    second = _watched_embedding(folder)
    found = sum(len(shard.names) for shard in EmbeddingFolder(folder / "features").shards())
    tenth = [moment for moment in first if moment[1] <= count / 10]
    last = [moment for moment in second if moment[1] >= 0.9 * count]
    return {
        "what": f"embed images, {layout}",
        "count": found,
        "seconds": first[-1][0] - first[0][0] + second[-1][0] - second[0][0],
        "rate": _rate(tenth),
        "rate_at_the_end": _rate(last),
        "mib": max(memory for *_, memory in tenth),
        "mib_at_the_end": max(memory for *_, memory in first + second),
    }


def _watched_embedding(folder: Path, kill_at: int | None = None) -> list[Moment]:
    """Embeds in a process of its own, killed (SIGKILL) once this many images are done; returns its moments."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_embed_and_report, args=(folder, sender))
    process.start()
    sender.close()
    moments: list[Moment] = []
    try:
        while True:
            moments.append(receiver.recv())
            if kill_at is not None and moments[-1][1] >= kill_at:
                process.kill()
                break
    except EOFError:  # it has ended
        pass
    process.join()
    return moments


def _embed_and_report(folder: Path, sender: "Connection[Moment, Any]") -> None:
    out = folder / "features"
    embed("average", folder / "images", out, batch_size=64, progress=_Reporting(sender), **SMALL)


def write_images(folder: Path, count: int, layout: Layout = "folders") -> None:
    """Writes generated images of 32 × 32 pixels, a thousand to a folder or ten thousand to a tar.

    A thousand are different; making a million would take longer than embedding them.
    """
    made = [jpeg(i) for i in range(min(count, DIFFERENT))]
    folder.mkdir(parents=True)
    size = PER_FOLDER if layout == "folders" else PER_TAR
    for start in range(0, count, size):
        some, name = range(start, min(start + size, count)), f"{start // size:05d}"
        if layout == "folders":
            (folder / name).mkdir()
            for i in some:
                (folder / name / f"{i:07d}.jpg").write_bytes(made[i % DIFFERENT])
        else:
            _write_tar(folder / f"{name}.tar", some, made)


def _write_tar(path: Path, images: range, made: list[bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for i in images:
            content, member = made[i % DIFFERENT], tarfile.TarInfo(f"{i:07d}.jpg")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def jpeg(seed: int) -> bytes:
    """Returns a generated image as a file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


class _Reporting(Progress):
    """Sends how many images are done, when, and the memory at that moment."""

    def __init__(self, sender: "Connection[Moment, Any]") -> None:
        self._sender = sender

    def task(self, description: str, total: int) -> Task:
        return _Reported(description, total, self._sender)


class _Reported(Task):
    def __init__(self, description: str, total: int, sender: "Connection[Moment, Any]") -> None:
        super().__init__(description, total)
        self._sender = sender

    def update(self, completed: int, status: str = "") -> None:
        super().update(completed, status)
        self._sender.send((time.perf_counter(), completed, resident()))


def _rate(moments: list[Moment]) -> float:
    """The images per second between the first and the last moment."""
    (begin, first, _), (end, last, _) = moments[0], moments[-1]
    return (last - first) / (end - begin)


def resident() -> float:
    """Returns the memory of this process in MiB."""
    statistics = Path("/proc/self/statm")
    if not statistics.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return int(statistics.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

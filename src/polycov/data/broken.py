"""Broken images, found before they end a run."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from polycov.data.image_files import UnreadableImageError
from polycov.data.images import ImageData, Samples
from polycov.errors import PolycovError
from polycov.progress import SILENT, Progress
from polycov.system.json_files import read_json, write_json

Broken = Literal["stop", "skip"]
FORMAT_VERSION = 3
SKIP = '--broken skip (in Python: broken="skip")'
CHUNK = 64  # images per unit of work


def find_broken(data: ImageData, cache: Path, *, workers: int = 2, progress: Progress = SILENT) -> dict[str, str]:
    """Returns the names of unreadable images, with the reason.

    Decodes every image once; the result is cached for as long as the images do not change.

    Args:
        data: dataset to check.
        cache: folder of the cache.
        workers: threads.
        progress: receives the number of images decoded.
    """
    samples = data.all_samples()
    if samples.source.always_readable:
        return {}
    path = cache / "checked" / f"{data.fingerprint(stamps=True)[:32]}.json"
    cached = _read_cached(path)
    if cached is not None:
        return cached
    errors: dict[str, UnreadableImageError] = {}
    chunks = [range(i, min(i + CHUNK, len(samples))) for i in range(0, len(samples), CHUNK)]
    with progress.task("checking images", len(samples)) as task, ThreadPoolExecutor(max(workers, 1)) as pool:
        for chunk, problems in zip(chunks, pool.map(lambda chunk: _unreadable(samples, chunk), chunks), strict=True):
            errors |= problems
            task.advance(len(chunk))
    unreadable = {name: error.reason for name, error in errors.items()}
    if not any(error.repairable for error in errors.values()):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"version": FORMAT_VERSION, "unreadable": unreadable})
    return unreadable


def _read_cached(path: Path) -> dict[str, str] | None:
    try:
        value: Any = read_json(path)
    except PolycovError:  # missing or damaged
        return None
    unreadable = value.get("unreadable") if isinstance(value, dict) and value.get("version") == FORMAT_VERSION else None
    valid = isinstance(unreadable, dict) and all(isinstance(reason, str) for reason in unreadable.values())
    return unreadable if valid else None


def _unreadable(samples: Samples, indices: Iterable[int]) -> dict[str, UnreadableImageError]:
    errors = {}
    for i in indices:
        try:
            samples.image(i, check=True)
        except UnreadableImageError as error:
            errors[samples.name(i)] = error
    return errors


def exclude_broken(
    data: ImageData, unreadable: dict[str, str], broken: Broken, progress: Progress = SILENT
) -> ImageData:
    """Returns the data without unreadable images, or raises if there are any.

    Args:
        data: from which `find_broken` got ``unreadable``.
        unreadable: names with reasons.
        broken: "stop" raises, "skip" excludes the images and reports them.
        progress: receives the message.

    Raises:
        PolycovError: if there are unreadable images and ``broken`` is "stop".
    """
    if not unreadable:
        return data
    names = sorted(unreadable)
    shown = "; ".join(f"{name} ({unreadable[name].removeprefix('it is ')})" for name in names[:10])
    count = sum(len(samples) for samples in data.splits.values())
    are, them = ("is", "it") if len(names) == 1 else ("are", "them")
    message = f"{len(names)} of {count} images {are} unreadable: {shown}{'; …' if len(names) > 10 else ''}"
    if broken == "stop":
        raise PolycovError(f"{message}. Remove {them}, or skip {them} with {SKIP}.")
    progress.message(f"skipped: {message}")
    return data.without(set(names))

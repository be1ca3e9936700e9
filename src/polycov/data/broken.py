"""Finding broken pictures before they end a run."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from rich.console import Console

from polycov.data.images import ImageData, Samples
from polycov.errors import PolycovError
from polycov.progress import ticking
from polycov.system.files import read_json, write_json

Broken = Literal["stop", "skip"]


def find_broken(samples: Samples, workers: int, tick: Callable[[int], object]) -> dict[str, str]:
    """Decodes every picture once; returns the names of those that cannot be read, with the reason."""

    def look(index: int) -> tuple[str, str] | None:
        try:
            with samples.source.open(samples.items[index]) as image:
                image.draft("RGB", (64, 64))  # a JPEG is read to its end all the same, but in small
                image.load()
        except Exception as error:  # Pillow and its plugins say no in many ways
            return samples.name(index), f"{type(error).__name__}: {error}"
        finally:
            tick(1)
        return None

    with ThreadPoolExecutor(max(workers, 1)) as pool:
        return dict(found for found in pool.map(look, range(len(samples))) if found)


def look_for_broken(data: ImageData, cache: Path, console: Console, workers: int = 2) -> dict[str, str]:
    """Returns the pictures that cannot be read, with the reason.

    All are decoded once; the answer is kept for as long as the files do not change.
    """
    whole = data.everything()
    if whole.source.sound:
        return {}
    known = cache / "checked" / f"{data.fingerprint(stamps=True)[:32]}.json"
    if known.is_file():
        before = read_json(known)
        if isinstance(before, dict):
            return before
    with ticking(console, "looking for broken pictures", len(whole)) as tick:
        found = find_broken(whole, workers, tick)
    if not any(reason.startswith(("PermissionError", "FileNotFoundError")) for reason in found.values()):
        known.parent.mkdir(parents=True, exist_ok=True)  # those may be repaired without a trace
        write_json(known, found)
    return found


def without_broken(data: ImageData, found: dict[str, str], broken: Broken, console: Console) -> ImageData:
    """Returns the data without the pictures that cannot be read, or stops if there are any, as asked.

    Raises:
        PolycovError: if there are broken pictures and ``broken`` is "stop".
    """
    if not found:
        return data
    names = sorted(found)
    shown = "; ".join(f"{name} ({found[name].partition(':')[0]})" for name in names[:10])
    count = sum(len(samples) for samples in data.parts.values())
    message = f"{len(found)} of {count} pictures cannot be read: {shown}{'; …' if len(found) > 10 else ''}"
    if broken == "stop":
        raise PolycovError(f"{message}. Remove them, or leave them out with --broken skip.")
    console.print(f"left out: {message}", soft_wrap=True, markup=False)
    return data.without(set(found))

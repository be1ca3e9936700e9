"""Finding broken pictures before they end a run."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from rich.console import Console

from polycov.data.images import ImageData, Samples
from polycov.errors import PolycovError
from polycov.files import read_json, write_json
from polycov.progress import ticking

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


def without_broken(data: ImageData, broken: Broken, cache: Path, console: Console, workers: int = 2) -> ImageData:
    """Returns the data without pictures that cannot be read, or stops if there are any, as asked.

    All pictures are decoded once; the answer is kept for as long as the files do not change.

    Raises:
        PolycovError: if there are broken pictures and ``broken`` is "stop".
    """
    whole = data.everything()
    if whole.source.sound:
        return data
    known = cache / "checked" / f"{data.fingerprint(stamps=True)[:32]}.json"
    if known.is_file():
        found = read_json(known)
    else:
        with ticking(console, "looking for broken pictures", len(whole)) as tick:
            found = find_broken(whole, workers, tick)
        known.parent.mkdir(parents=True, exist_ok=True)
        write_json(known, found)
    if not found:
        return data
    names = sorted(found)
    shown = "; ".join(f"{name} ({found[name].partition(':')[0]})" for name in names[:10])
    message = f"{len(found)} of {len(whole)} pictures cannot be read: {shown}{'; …' if len(found) > 10 else ''}"
    if broken == "stop":
        raise PolycovError(f"{message}. Remove them, or leave them out with --broken skip.")
    console.print(f"left out: {message}", soft_wrap=True, markup=False)
    return data.without(set(found))

"""The feature stores of a cache: what they are, whether they are sound, and which can go."""

import os
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polycov.data.shard_files import IDENTITY, IN_USE, ShardFiles
from polycov.errors import PolycovError, known
from polycov.progress import SILENT, Progress
from polycov.system.json_files import read_object
from polycov.system.locks import folder_lock

DAY = 86400.0
REMOVED = ".removed-"  # folders on their way out


@dataclass(frozen=True)
class CachedStore:
    """One feature store in a cache.

    Attributes:
        folder: folder of the store; its name is unique, but means nothing to a reader.
        what: what it holds, in words.
        images: their number.
        stored: how many of them have features; fewer than ``images`` if it was interrupted.
        bytes: on disk.
        used: when it was last opened, in seconds since 1970.
        files: its files, to check; None if nothing says what they hold.
    """

    folder: Path
    what: str
    images: int
    stored: int
    bytes: int
    used: float
    files: ShardFiles | None = None

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.name

    @property
    def complete(self) -> bool:
        """Whether every image has features."""
        return self.files is not None and self.stored == self.images

    @property
    def days(self) -> float:
        """How many days ago it was last opened."""
        return (time.time() - self.used) / DAY

    def problems(self) -> dict[str, str]:
        """Returns what is wrong with its files, by name; damaged shards are computed again when it is next opened."""
        return {IDENTITY: "missing or damaged"} if self.files is None else self.files.problems()


def list_stores(cache: Path, progress: Progress = SILENT) -> list[CachedStore]:
    """Returns the feature stores of a cache, the last used first.

    Args:
        cache: folder of the cache, as from `cache_folder`.
        progress: receives the progress of `CachedStore.problems`.
    """
    folders = [path for path in (cache / "features").glob("*") if path.is_dir() and not path.name.startswith(".")]
    return sorted((_read(folder, progress) for folder in folders), key=lambda store: -store.used)


def _read(folder: Path, progress: Progress) -> CachedStore:
    sizes, times = [0], [0.0]
    for path in folder.iterdir():
        status = path.lstat()
        sizes.append(status.st_size)
        times.append(status.st_mtime if path.name in (IN_USE, IDENTITY) else 0.0)
    try:
        description = read_object(folder / IDENTITY)
        images, *shape = (int(size) for size in description["shape"])
        files = ShardFiles(folder, (images, *shape), max(int(description["shard_size"]), 1), progress)
        what = _words(description["identity"], shape)
        return CachedStore(folder, what, images, files.stored, sum(sizes), max(times), files)
    except (PolycovError, KeyError, TypeError, ValueError, OverflowError):
        return CachedStore(folder, "unknown: nothing says what it holds", 0, 0, sum(sizes), max(times))


def _words(identity: dict[str, Any], shape: Sequence[int]) -> str:
    """What a store holds: features of a network, in words."""
    size = identity.get("preprocessing", {}).get("size")
    of = identity.get("backbone") or identity.get("model", {}).get("backbone", {})
    of = of.get("name", "a model") if isinstance(of, dict) else of
    stage = f", stage {identity['stage']}" if identity.get("stage") is not None else ""
    pixels = f", {size} pixels" if size else ""
    kind = identity.get("what") or identity.get("pool") or ("reduced features" if "basis" in identity else "features")
    return f"{kind} of {of}{stage}{pixels}: {' × '.join(map(str, shape))}"


def select_stores(
    stores: Iterable[CachedStore],
    *,
    names: Sequence[str] = (),
    older_than: float | None = None,
    incomplete: bool = False,
) -> list[CachedStore]:
    """Returns the stores that match all of the conditions.

    Args:
        stores: to choose from.
        names: beginnings of names, or parts of what stores hold.
        older_than: days since they were last used.
        incomplete: only those without features of all images.

    Raises:
        PolycovError: if a name matches no store.
    """
    chosen = list(stores)
    for name in names:
        if not any(_matches(store, name) for store in chosen):
            raise PolycovError(f"No store matches {name!r}. {known(name, [store.name for store in chosen])}")
    if names:
        chosen = [store for store in chosen if any(_matches(store, name) for name in names)]
    if older_than is not None:
        chosen = [store for store in chosen if store.days > older_than]
    return [store for store in chosen if not (incomplete and store.complete)]


def _matches(store: CachedStore, name: str) -> bool:
    return store.name.startswith(name) or name in store.what


def remove_stores(stores: Iterable[CachedStore], progress: Progress = SILENT) -> list[CachedStore]:
    """Removes the stores that no process is using; returns those removed.

    Args:
        stores: to remove.
        progress: receives a message for each store in use.
    """
    removed = []
    for store in stores:
        for left in store.folder.parent.glob(f"{REMOVED}*"):  # by a kill
            shutil.rmtree(left, ignore_errors=True)
        (store.folder / IN_USE).touch()
        with folder_lock(store.folder / IN_USE, wait=False) as (alone, _):
            if not alone:
                progress.message(f"note: {store.name} is in use and is kept")
                continue
            moved = store.folder.with_name(f"{REMOVED}{uuid.uuid4().hex[:12]}")
            os.replace(store.folder, moved)  # at once: nobody sees half a store
        shutil.rmtree(moved)
        removed.append(store)
    return removed

"""``polycov cache``."""

import sys
from dataclasses import dataclass
from pathlib import Path

from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.data.feature_cache import CachedStore, list_stores, remove_stores, select_stores
from polycov.errors import PolycovError
from polycov.system.files import cache_folder
from polycov.system.tables import Table


@dataclass(frozen=True)
class Cache:
    """List the feature stores in the cache, check them, or remove some."""

    names: tuple[str, ...] = ()
    """Only stores whose names begin with this, or that hold it, such as resnet50; default: all."""
    older_than: float | None = None
    """Only those not used for this many days."""
    incomplete: bool = False
    """Only those without features of all images."""
    verify: bool = False
    """Compare every file with its checksum. Damaged ones are computed again when a store is next used."""
    prune: bool = False
    """Remove them, except those in use. Needs NAME, --older-than, --incomplete or --all."""
    all: bool = False
    """With --prune: remove all."""
    yes: bool = False
    """With --prune: do not ask."""
    cache: Path | None = None
    """Folder of the cache; default: POLYCOV_CACHE, or the user's cache folder."""


def run(arguments: list[str]) -> None:
    """Shows, checks or removes stores."""
    options = parse(Cache, "cache", arguments, positional={"names": "[NAME…]"})
    if options.prune and not (options.names or options.older_than is not None or options.incomplete or options.all):
        raise PolycovError("Choose what to remove: NAME, --older-than DAYS, --incomplete or --all.")
    terminal, folder = Terminal(), cache_folder(options.cache)
    stores = select_stores(
        list_stores(folder, terminal.progress),
        names=options.names,
        older_than=options.older_than,
        incomplete=options.incomplete,
    )
    _show(stores, folder, terminal)
    if options.verify:
        _verify(stores, terminal)
    if options.prune and stores:
        _prune(stores, options, terminal)


def _show(stores: list[CachedStore], folder: Path, terminal: Terminal) -> None:
    rows = [
        (store.name[:8], store.what, _images(store), f"{store.bytes / 1e6:,.1f}", f"{store.days:.1f}")
        for store in stores
    ]
    if rows:
        terminal.table(Table(("store", "what", "images", "MB", "days since used"), rows))
    total = sum(store.bytes for store in stores) / 1e9
    terminal.write(f"{len(stores)} stores, {total:.2f} GB, in {folder / 'features'}")


def _images(store: CachedStore) -> str:
    return str(store.images) if store.complete else f"{store.stored} of {store.images}"


def _verify(stores: list[CachedStore], terminal: Terminal) -> None:
    damaged = 0
    for store in stores:
        for file, problem in store.problems().items():
            damaged += 1
            terminal.write(f"{store.folder / file}: {problem}")
    if damaged:
        terminal.write(f"{damaged} files are damaged; their features are computed again when the store is next used.")
        sys.exit(1)
    terminal.write("All files have their checksums.")


def _prune(stores: list[CachedStore], options: Cache, terminal: Terminal) -> None:
    if not options.yes:
        if not sys.stdin.isatty():
            raise PolycovError("There is no terminal to ask in before removing: add --yes.")
        if input(f"Remove these {len(stores)} stores? [y/N] ").strip().lower() not in ("y", "yes"):
            terminal.write("Nothing was removed.")
            return
    removed = remove_stores(stores, terminal.progress)
    terminal.write(f"{len(removed)} stores removed, {sum(store.bytes for store in removed) / 1e9:.2f} GB.")

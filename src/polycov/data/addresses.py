"""Files by their address: a path on this machine, or a URL of an object store or web server, by way of fsspec."""

import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from polycov.errors import MissingDependencyError, PolycovError, first_line
from polycov.system.files import open_regular

MAX_BYTES = 2**30  # of one image
PAUSES = (0.5, 2.0)  # seconds before a second and a third attempt
Result = TypeVar("Result")


def local_path(address: str) -> Path | None:
    """Returns the path of a file on this machine; None for a file elsewhere.

    Example:
        >>> local_path("birds/1.jpg"), local_path("file:///birds/1.jpg"), local_path("s3://birds/1.jpg")
        (PosixPath('birds/1.jpg'), PosixPath('/birds/1.jpg'), None)
    """
    if not is_url(address):
        return Path(address)
    parts = urlsplit(address)
    return Path(url2pathname(parts.path)) if parts.scheme in ("file", "local") else None


def is_url(address: str) -> bool:
    """Returns whether an address is a URL, such as ``s3://bucket/birds``."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", address) is not None


def has_extension(address: str, extensions: tuple[str, ...]) -> bool:
    """Returns whether the file at an address has one of these extensions.

    Example:
        >>> has_extension("https://example.org/Birds.TAR?key=1", (".tar",))
        True
    """
    path = urlsplit(address.partition("::")[0]).path if is_url(address) else address
    return path.lower().endswith(extensions)


def open_address(address: str) -> BinaryIO:
    """Opens a file, local or remote, for reading.

    Raises:
        OSError: if it is missing or cannot be read; ConnectionError if it cannot be reached.
        ValueError: if it is not a regular file.
    """
    path = local_path(address)
    if path is not None:
        return open_regular(path)
    file: BinaryIO = attempt(address, lambda store, inside: store.open(inside, "rb"))
    return file


def read_address(address: str, start: int, size: int) -> bytes:
    """Returns up to ``size`` bytes of a file from ``start``; fewer if the file ends earlier.

    Raises:
        OSError: if it is missing or cannot be read; ConnectionError if it cannot be reached.
        ValueError: if it is not a regular file.
    """
    path = local_path(address)
    if path is None:
        content: bytes = attempt(address, lambda store, inside: store.cat_file(inside, start=start, end=start + size))
        return content
    with open_regular(path) as file:
        file.seek(start)
        return file.read(size)


def walk_store(address: str, choose: Callable[[list[str]], list[str]]) -> Iterator[str]:
    """Yields files in an object store one by one: the one at the address, or those in and below a folder.

    Args:
        address: of a file or folder.
        choose: which of the names in a folder to yield, and in which order. Hidden ones are left out.

    Raises:
        PolycovError: if there is nothing at the address.
        ConnectionError: if it cannot be reached.
    """
    store, root = open_store(address)
    if not attempt(address, lambda store, inside: store.exists(inside)):
        raise PolycovError(f"There is no file or folder {address!r}.")
    if not attempt(address, lambda store, inside: store.isdir(inside)):
        yield address
        return
    folders = [root]
    while folders:
        folder = folders.pop()
        entries = attempt(address, partial(_list, folder=folder))
        store.invalidate_cache()  # it would keep every name
        found = sorted((_below(str(entry["name"]), folder), entry["type"] == "directory") for entry in entries)
        found = [(name, inner) for name, inner in found if name and not name.startswith(".")]
        place = _joined(address, folder.removeprefix(root).strip("/"))
        yield from (_joined(place, name) for name in choose([name for name, inner in found if not inner]))
        folders += [f"{folder.rstrip('/')}/{name}" for name, inner in reversed(found) if inner]


def _list(store: Any, _: str, folder: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = store.ls(folder, detail=True)
    return entries


def _below(name: str, folder: str) -> str:
    """The name of an entry within its folder; empty if it is not: lists of some servers name the folder itself."""
    inside = name.rstrip("/").removeprefix(folder.rstrip("/") + "/")
    return "" if "/" in inside or (inside == name.rstrip("/") and folder.strip("/")) else inside


def _joined(address: str, name: str) -> str:
    """The address of a file in a folder; in a chain such as ``zip://birds::s3://…`` the first part is the folder."""
    first, chain, rest = address.partition("::")
    return f"{first.rstrip('/') if name else first}{'/' if name else ''}{name}{chain}{rest}"


def open_store(address: str) -> tuple[Any, str]:
    """Returns the fsspec store of an address, and the path in it; each process has its own store.

    Raises:
        PolycovError: if fsspec does not know the address.
        MissingDependencyError: if a package for such a store is not installed.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingDependencyError(f"{address!r} needs fsspec. Install it with: pip install fsspec") from error
    try:
        store, inside = url_to_fs(address)
    except ImportError as error:
        raise MissingDependencyError(f"{address!r} needs another package for fsspec: {error}.") from error
    except ValueError as error:
        raise PolycovError(f"Cannot read {address!r}: {error}.") from error
    return store, str(inside)


def attempt(address: str, work: Callable[[Any, str], Result]) -> Result:
    """Returns what ``work`` does with a store and a path in it, tried again if the connection fails.

    Raises:
        OSError: if the file is missing, or access is denied.
        ConnectionError: after the third failure.
    """
    store, inside = open_store(address)
    for pause in (*PAUSES, None):
        try:
            return work(store, inside)
        except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError):
            raise
        except Exception as error:  # every store has errors of its own
            if pause is None:
                raise ConnectionError(f"Cannot reach {address!r}: {first_line(error)}.") from error
            time.sleep(pause)
    raise AssertionError


def stamp_of(address: str) -> str:
    """Returns a text that changes when the file does; "missing" if it is not there."""
    path = local_path(address)
    try:
        if path is None:
            return str(attempt(address, lambda store, inside: store.ukey(inside)))
        status = os.stat(path)
    except OSError:
        return "missing"
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"

"""Files. They are replaced atomically: a reader never sees a partial one, not even after a kill.

Nothing is written through a link, and only regular files are read: a pipe would never end.
"""

import os
import re
import stat
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

from polycov.errors import PolycovError, require_module
from polycov.system.locks import folder_lock


def write_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Lets ``fill`` write a temporary file next to ``path``, syncs it to disk and renames it to ``path``.

    A link at ``path`` is replaced, not followed. What a killed process left of the same file is removed first.

    Raises:
        OSError: if the file cannot be written; it names ``path``. A previous file is left as it was.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        remove_temporary_files(path.parent, path.name)
        with folder_lock(path.parent, wait=True) as (_, folder):  # a temporary file is in use
            try:
                temporary.touch(exist_ok=False)
                mode = stat.S_IMODE(temporary.stat().st_mode)
                fill(temporary)
                temporary.chmod(mode)  # some libraries create files that only their owner can read
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())
                os.replace(temporary, path)
                with suppress(OSError):
                    os.fsync(folder)  # makes the rename survive a power failure, where folders can be opened
            finally:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
    except OSError as error:
        name_file(error, path, temporary)
        raise


def remove_temporary_files(folder: Path, name: str | None = None) -> None:
    """Removes the files that killed processes left unfinished in a folder: all, or those that were to become ``name``.

    While another process writes a file there, nothing is removed.
    """
    wanted = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.[0-9a-f]{{12}}\.tmp", re.DOTALL)
    try:
        left = [path for path in folder.iterdir() if wanted.fullmatch(path.name)]
    except PermissionError:  # a folder can be writable but not readable
        left = []
    if left:
        with folder_lock(folder, wait=False) as (alone, _):
            for path in left if alone else ():
                path.unlink(missing_ok=True)


def name_file(error: OSError, path: Path, temporary: Path | None = None) -> None:
    """Adds the path to an error without one, such as that of a full disk."""
    if error.errno is not None and (error.filename is None or Path(error.filename) in (temporary, path.parent)):
        error.filename = str(path)


def write_text(path: Path, text: str) -> None:
    """Writes a text as UTF-8. File names that are not UTF-8 survive the round trip."""
    content = text.encode("utf-8", "surrogateescape")
    write_file(path, lambda temporary: temporary.write_bytes(content))


def is_there(path: Path) -> bool:
    """Returns whether there is anything at a path, even a folder, a pipe or a broken link in place of a file."""
    return os.path.lexists(path)


def open_to_read(path: Path) -> BinaryIO:
    """Opens a regular file.

    Raises:
        PolycovError: if it is missing, is anything else, such as a folder or a pipe, or cannot be read.
    """
    try:
        return open_regular(path)
    except FileNotFoundError as error:
        raise PolycovError(f"There is no file {str(path)!r}.") from error
    except (OSError, ValueError) as error:
        raise PolycovError(f"Cannot read {str(path)!r}: {getattr(error, 'strerror', error)}.") from error


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: Literal["rb", "ab+"] = "rb") -> BinaryIO:
    """Opens a regular file: reading a pipe or a device may never end.

    Raises:
        ValueError: if it is anything else.
        OSError: if it cannot be opened.
    """
    kinds = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags | kinds, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, mode)
    os.close(descriptor)
    raise ValueError("it is not a regular file")


def open_to_append(path: Path) -> BinaryIO:
    """Opens a file for reading and for writing at its end.

    Raises:
        PolycovError: if it is a link, or anything but a regular file.
    """
    try:
        return open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), "ab+")
    except OSError as error:
        if path.is_symlink():
            raise PolycovError(f"{str(path)!r} is a link, and nothing is written through a link.") from error
        raise
    except ValueError as error:
        raise PolycovError(f"Cannot write to {str(path)!r}: {error}.") from error


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a text file in UTF-8 that are not blank, without spaces at their ends.

    Raises:
        PolycovError: if it is not UTF-8.
    """
    with open_to_read(path) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PolycovError(f"Expected UTF-8 text in {str(path)!r}: {error}. Save the file as UTF-8.") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def cache_folder(folder: Path | None = None) -> Path:
    """Returns the folder for files that can be recomputed: ``folder``, else POLYCOV_CACHE, else the user's cache.

    Raises:
        MissingDependencyError: if platformdirs is needed and not installed.
    """
    chosen = folder or os.environ.get("POLYCOV_CACHE")
    if not chosen:
        platformdirs = require_module(
            "platformdirs",
            "The default cache folder needs platformdirs. Install it with: pip install 'polycov[train]', or set "
            "POLYCOV_CACHE.",
        )
        chosen = platformdirs.user_cache_path("polycov", appauthor=False)
    path = Path(chosen).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    return path

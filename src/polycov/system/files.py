"""Files and locks: a reader, or a process killed half-way, never finds half a file."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from polycov.errors import MissingDependencyError, PolycovError


def write_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Lets ``fill`` write a temporary file beside ``path``, and moves it into place in one step once it is on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fill(temporary)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # like any other file; some libraries write for the owner alone
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise _named(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def _named(error: OSError, path: Path) -> OSError:
    """The error with the file it is about, which a full disk does not say."""
    if error.filename is not None or error.errno is None:
        return error
    return OSError(error.errno, error.strerror, str(path))


def write_text(path: Path, text: str) -> None:
    """Writes a text as UTF-8; file names that are not UTF-8 survive the round trip."""
    write_file(path, lambda temporary: temporary.write_bytes(text.encode("utf-8", "surrogateescape")))


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads JSON.

    Raises:
        PolycovError: if the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except FileNotFoundError as error:
        raise PolycovError(f"There is no file {str(path)!r}.") from error
    except (ValueError, RecursionError) as error:
        raise PolycovError(f"Expected JSON in {str(path)!r}: {error}.") from error


def _lines(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Writes values as JSON lines."""
    write_text(path, _lines(rows))


def append_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Appends values to a file of JSON lines; an unfinished line at its end, left by a kill, is cut off first."""
    try:
        with path.open("ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(_lines(rows).encode("utf-8", "surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _named(error, path) from error


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file of JSON lines, without an unfinished one at its end; nothing if there is no file.

    Raises:
        PolycovError: on a line that is not a JSON object.
    """
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                value = json.loads(line)
            except ValueError as error:
                raise PolycovError(f"Line {number} of {str(path)!r} is not JSON: {error}.") from error
            if not isinstance(value, dict):
                raise PolycovError(f"Line {number} of {str(path)!r} is not a JSON object.")
            yield value


def cache_folder(folder: Path | None = None) -> Path:
    """Returns the folder for what can be computed again: the one given, or POLYCOV_CACHE, or the user's cache."""
    chosen = folder or os.environ.get("POLYCOV_CACHE")
    if not chosen:
        try:
            from platformdirs import user_cache_path
        except ImportError as error:
            raise MissingDependencyError(
                "The cache folder needs platformdirs. Install it with: pip install 'polycov[train]'"
            ) from error
        chosen = user_cache_path("polycov", appauthor=False)
    path = Path(chosen)
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Tries to take a lock, which the system releases when a process dies; yields whether it was free."""
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):  # Windows does not remove what is locked
            path.unlink()
        lock.release()


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Waits for a lock and holds it."""
    with FileLock(path):
        yield

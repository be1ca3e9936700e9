"""Writing files so that a reader, or a process killed in the middle, never finds half of one."""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polycov.errors import PolycovError


def write(path: Path, fill: Callable[[Path], object]) -> None:
    """Lets ``fill`` write a file beside ``path``, and puts it in place in one step when it is whole and on disk."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fill(beside)
        mask = os.umask(0)
        os.umask(mask)
        beside.chmod(0o666 & ~mask)  # as any other file; some libraries write for the owner alone
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise _named(error, path) from error
    finally:
        beside.unlink(missing_ok=True)


def _named(error: OSError, path: Path) -> OSError:
    """The error with the file that it is about, which a full disk does not say."""
    return (
        error if error.filename is not None or error.errno is None else OSError(error.errno, error.strerror, str(path))
    )


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON."""
    write(path, lambda beside: beside.write_bytes(_encode(json.dumps(value, indent=2, ensure_ascii=False) + "\n")))


def _encode(text: str) -> bytes:
    """UTF-8; names of files that are not come back as they were."""
    return text.encode("utf-8", "surrogateescape")


def write_csv(path: Path, head: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Writes a table as CSV; numbers that are not whole with six digits."""

    def fill(beside: Path) -> None:
        with beside.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(head)
            writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)

    write(path, fill)


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


def append_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Appends values to a file of JSON lines; whatever a killed process left unfinished at its end is cut off."""
    try:
        with path.open("ab+") as file:
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)
            file.write(_encode("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _named(error, path) from error


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Writes values as a file of JSON lines."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write(path, lambda beside: beside.write_bytes(_encode(text)))


def json_lines(path: Path) -> Iterator[Any]:
    """Yields the values of a file of JSON lines, without an unfinished one at its end; none if there is no file.

    Raises:
        PolycovError: on a line that is not JSON of an object.
    """
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise PolycovError(f"Line {number} of {str(path)!r} is not JSON: {error}.") from error
            if not isinstance(value, dict):
                raise PolycovError(f"Line {number} of {str(path)!r} is not a record.")
            yield value


def cache_folder(folder: Path | None = None) -> Path:
    """Returns the folder for what can be computed again: the one given, or POLYCOV_CACHE, or the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    chosen = folder or Path(os.environ.get("POLYCOV_CACHE") or f"{home}/polycov")
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen


@contextmanager
def lock(path: Path, wait: bool = False) -> Iterator[bool]:
    """Holds a lock that the system gives back when a process dies; yields whether it was to be had."""
    import fcntl

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
        if not wait:
            path.unlink(missing_ok=True)

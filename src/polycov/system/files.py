"""Files and locks. Files are replaced atomically: a reader never sees a partial one, not even after a kill."""

import json
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from polycov.errors import MissingDependencyError, PolycovError


def write_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Lets ``fill`` write a temporary file next to ``path``, syncs it to disk and renames it to ``path``.

    Raises:
        OSError: if the file cannot be written; it names ``path``. A previous file is left as it was.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        temporary.touch(exist_ok=False)
        mode = stat.S_IMODE(temporary.stat().st_mode)
        fill(temporary)
        temporary.chmod(mode)  # some libraries create files that only their owner can read
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        _set_filename(error, path, temporary)
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_temporary_files(folder: Path) -> None:
    """Removes files that killed processes left unfinished; nobody may be writing to ``folder`` at the same time."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Makes a rename survive a power failure, where the system can open folders."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _set_filename(error: OSError, path: Path, temporary: Path | None = None) -> None:
    """Adds the path to an error without one, such as that of a full disk."""
    if error.errno is not None and error.filename in (None, str(temporary)):
        error.filename = str(path)


def write_text(path: Path, text: str) -> None:
    """Writes a text as UTF-8. File names that are not UTF-8 survive the round trip."""
    content = text.encode("utf-8", "surrogateescape")
    write_file(path, lambda temporary: temporary.write_bytes(content))


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads JSON.

    Raises:
        PolycovError: if the file is missing or is not JSON.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except FileNotFoundError as error:
        raise PolycovError(f"There is no file {str(path)!r}.") from error
    except ValueError as error:
        raise PolycovError(f"Expected JSON in {str(path)!r}: {error}.") from error


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ValueError: if it is not JSON, is nested too deeply, or has characters that no file can hold.
    """
    try:
        value = json.loads(text)
        if (b"\\u" if isinstance(text, bytes) else "\\u") in text:  # type: ignore[operator]
            json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a text file in UTF-8 that are not blank, without spaces at their ends.

    Raises:
        PolycovError: if it is not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PolycovError(f"Expected UTF-8 text in {str(path)!r}: {error}. Save the file as UTF-8.") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _json_lines(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Writes values as JSON lines."""
    write_text(path, _json_lines(rows))


def append_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Appends values to a file of JSON lines and syncs it; removes an incomplete last line, left by a kill, first."""
    content = _json_lines(rows).encode("utf-8", "surrogateescape")
    try:
        with path.open("ab+") as file:
            file.truncate(_end_of_lines(file))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        _set_filename(error, path)
        raise


def _end_of_lines(file: BinaryIO, block: int = 65536) -> int:
    """The position after the last line break, looking backwards from the end."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        begin = max(end - block, 0)
        file.seek(begin)
        position = file.read(end - begin).rfind(b"\n")
        if position >= 0:
            return begin + position + 1
        end = begin
    return 0


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects in a file of JSON lines, without an incomplete last line; nothing if there is no file.

    Raises:
        PolycovError: on a line that is not a JSON object.
    """
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for line_number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                value = parse_json(line)
            except ValueError as error:
                raise PolycovError(f"Line {line_number} of {str(path)!r} is not JSON: {error}.") from error
            if not isinstance(value, dict):
                raise PolycovError(f"Line {line_number} of {str(path)!r} is not a JSON object.")
            yield value


def cache_folder(folder: Path | None = None) -> Path:
    """Returns the folder for files that can be recomputed: ``folder``, else POLYCOV_CACHE, else the user's cache.

    Raises:
        MissingDependencyError: if platformdirs is needed and not installed.
    """
    chosen = folder or os.environ.get("POLYCOV_CACHE")
    if not chosen:
        try:
            from platformdirs import user_cache_path
        except ImportError as error:
            raise MissingDependencyError(
                "The default cache folder needs platformdirs. Install it with: pip install 'polycov[train]', "
                "or set POLYCOV_CACHE."
            ) from error
        chosen = user_cache_path("polycov", appauthor=False)
    path = Path(chosen).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Yields whether a lock was free, and holds it if so. The system releases it when the process dies."""
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):  # Windows cannot remove a locked file
            path.unlink()  # safe: filelock checks that the file it locked has not been removed
        lock.release()


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Waits for a lock and holds it. The system releases it when the process dies."""
    with FileLock(path):
        yield

"""JSON, and JSON lines: one object per line, appended and synced. Names that are not UTF-8 survive the round trip."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from polycov.errors import PolycovError
from polycov.system.files import is_there, name_file, open_to_append, open_to_read, write_text


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads JSON.

    Raises:
        PolycovError: if the file is missing or is not JSON.
    """
    with open_to_read(path) as file:
        text = file.read().decode("utf-8", "surrogateescape")
    try:
        return parse_json(text)
    except ValueError as error:
        raise PolycovError(f"Expected JSON in {str(path)!r}: {error}.") from error


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        PolycovError: if the file is missing or holds anything else.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise PolycovError(f"Expected a JSON object in {str(path)!r}, got {str(value)[:40]!r}.")
    return value


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


def _json_lines(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Writes values as JSON lines."""
    write_text(path, _json_lines(rows))


def append_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Appends values to a file of JSON lines and syncs it; removes an incomplete last line, left by a kill, first.

    Raises:
        OSError: if it cannot be written; earlier lines stay as they are.
        PolycovError: if it is a link, or anything but a regular file.
    """
    content = _json_lines(rows).encode("utf-8", "surrogateescape")
    try:
        with open_to_append(path) as file:
            file.truncate(_end_of_lines(file))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        name_file(error, path)
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
    if not is_there(path):
        return
    with open_to_read(path) as file:
        for line_number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                value = parse_json(line.decode("utf-8", "surrogateescape"))
            except ValueError as error:
                raise PolycovError(f"Line {line_number} of {str(path)!r} is not JSON: {error}.") from error
            if not isinstance(value, dict):
                raise PolycovError(f"Line {line_number} of {str(path)!r} is not a JSON object.")
            yield value

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from polycov.errors import PolycovError
from polycov.system.json_files import (
    append_json_lines,
    read_json,
    read_json_lines,
    read_object,
    write_json,
    write_json_lines,
)

# JSON


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, "é"]}, [], "text", os.fsdecode(b"caf\xe9.png")])
def test_json_survives_the_round_trip(tmp_path: Path, value: Any) -> None:
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


DAMAGED = [b"", b"{", b'{"a": }', b"[" * 100_000, b'{"a": "\\ud800"}', b"9" * 5000, b"\xff"]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(PolycovError, match=r"^Expected JSON in '.*a\.json': "):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.jsonl").write_bytes(content + b"\n")
    with pytest.raises(PolycovError, match=r"^Line 1 of '.*a\.jsonl' is not JSON: "):
        list(read_json_lines(tmp_path / "a.jsonl"))


def test_missing_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match=r"^There is no file '.*a\.json'\.$"):
        read_json(tmp_path / "a.json")


# JSON lines

ROWS = [{"a": 1}, {"b": "é\u2028\r\n"}, {"c": os.fsdecode(b"\xe9")}]


def test_json_lines_survive_the_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_json_lines(path, ROWS)
    assert list(read_json_lines(path)) == ROWS
    append_json_lines(path, ROWS[:1])
    assert list(read_json_lines(path)) == [*ROWS, ROWS[0]]
    write_json_lines(path, ROWS[1:])
    assert list(read_json_lines(path)) == ROWS[1:]


def test_lines_are_appended_to_a_new_file_too(tmp_path: Path) -> None:
    append_json_lines(tmp_path / "a.jsonl", ROWS)
    assert list(read_json_lines(tmp_path / "a.jsonl")) == ROWS
    assert list(read_json_lines(tmp_path / "absent.jsonl")) == []


@pytest.mark.parametrize("end", ['{"a', '{"a": 2}', "x" * 200_000])
@pytest.mark.parametrize("before", [[], ROWS])
def test_an_incomplete_last_line_is_ignored_and_then_replaced(tmp_path: Path, before: list[Any], end: str) -> None:
    path = tmp_path / "a.jsonl"
    write_json_lines(path, before)
    with path.open("a") as file:
        file.write(end)
    assert list(read_json_lines(path)) == before
    append_json_lines(path, [{"d": 4}])
    assert list(read_json_lines(path)) == [*before, {"d": 4}]


def test_rows_that_are_not_json_leave_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"unfini')
    with pytest.raises(TypeError):
        append_json_lines(path, [{"a": object()}])
    assert path.read_text() == '{"a": 1}\n{"unfini'


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", r"^Line 2 of '.*a\.jsonl' is not JSON: "), ("[1]", r"^Line 2 of .* is not a JSON object")],
)
def test_damaged_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n')
    rows = read_json_lines(path)
    assert next(rows) == {"a": 1}
    with pytest.raises(PolycovError, match=message):
        next(rows)


def test_an_error_while_appending_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.jsonl'$"):
        append_json_lines(tmp_path / "a.jsonl", ROWS)


@pytest.mark.parametrize("text", ["[]", "null", "3", '"text"'])
def test_an_object_is_expected(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(PolycovError, match=r"^Expected a JSON object in '.*a\.json', got "):
        read_object(tmp_path / "a.json")


# What is not a regular file


def test_nothing_is_appended_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "precious.jsonl"
    other.write_text("{}\nand half a line")
    (tmp_path / "a.jsonl").symlink_to(other)
    with pytest.raises(PolycovError, match=r"a\.jsonl' is a link, and nothing is written through a link"):
        append_json_lines(tmp_path / "a.jsonl", ROWS)
    assert other.read_text() == "{}\nand half a line"
    write_json_lines(tmp_path / "a.jsonl", ROWS)  # replaces the link itself
    assert other.read_text() == "{}\nand half a line"
    assert not (tmp_path / "a.jsonl").is_symlink()


def test_pipes_and_folders_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(PolycovError, match=rf"^Cannot read '.*{name}': it is not a regular file"):
            read_json(tmp_path / name)
    with pytest.raises(PolycovError, match=r"^Cannot write to '.*pipe': it is not a regular file"):
        append_json_lines(tmp_path / "pipe", ROWS)

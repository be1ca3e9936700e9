import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polycov.errors import MissingDependencyError, PolycovError
from polycov.system.files import (
    append_json_lines,
    cache_folder,
    read_json,
    read_json_lines,
    read_lines,
    remove_temporary_files,
    try_lock,
    wait_for_lock,
    write_file,
    write_json,
    write_json_lines,
    write_text,
)

# Atomic writes


def test_a_file_appears_complete_and_replaces_the_previous_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")

    def fill(temporary: Path) -> None:
        temporary.write_text("after")
        assert path.read_text() == "before"

    write_file(path, fill)
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_a_failed_write_leaves_the_previous_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")

    def fill(temporary: Path) -> None:
        temporary.write_text("half")
        raise error

    with pytest.raises(type(error)):
        write_file(path, fill)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_data_is_on_disk_before_the_file_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def record(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            calls.append(name)
            real(*args)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, record(name, getattr(os, name)))
    write_text(tmp_path / "a.txt", "text")
    assert calls == ["fsync", "replace", "fsync"]  # the last is the folder's


def test_errors_name_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    def fill(temporary: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*/a\.txt'$"):
        write_file(tmp_path / "a.txt", fill)
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*/absent/a\.txt'$"):
        write_text(tmp_path / "absent" / "a.txt", "text")


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    def fill(temporary: Path) -> None:
        temporary.write_text("text")
        temporary.chmod(0o600)  # as some libraries do

    before = os.umask(0o027)
    try:
        write_file(tmp_path / "a.txt", fill)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_threads_may_write_the_same_file(tmp_path: Path) -> None:
    path, errors = tmp_path / "a.txt", list[BaseException]()

    def write(text: str) -> None:
        try:
            for _ in range(20):
                write_text(path, text * 1000)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert path.read_text() in ("a" * 1000, "b" * 1000)


def test_only_temporary_files_are_removed(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def fill(temporary: Path) -> None:
        temporary.rename(temporary.with_name(temporary.name.replace("a.txt", "b.txt")))  # survives the clean-up
        raise Killed

    with pytest.raises(Killed):
        write_file(tmp_path / "a.txt", fill)
    (tmp_path / ".hidden").touch()
    (tmp_path / "notes.tmp").touch()
    assert len(os.listdir(tmp_path)) == 3
    remove_temporary_files(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden", "notes.tmp"]


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


def test_lines_are_stripped_and_read_as_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeff ash \r\n\n\u00e9rable\n".encode())
    assert read_lines(tmp_path / "a.txt") == ["ash", "\u00e9rable"]
    (tmp_path / "a.txt").write_bytes(b"\xe9rable")
    with pytest.raises(PolycovError, match=r"^Expected UTF-8 text in '.*a\.txt': .* Save the file as UTF-8\.$"):
        read_lines(tmp_path / "a.txt")


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


# The cache folder


def test_the_cache_folder_is_the_one_given_or_set_or_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCOV_CACHE", str(tmp_path / "set"))
    assert cache_folder(tmp_path / "given" / "below") == tmp_path / "given" / "below"
    assert (tmp_path / "given" / "below").is_dir()
    assert cache_folder() == tmp_path / "set"
    assert (tmp_path / "set").is_dir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("POLYCOV_CACHE", "~/home")
    assert cache_folder() == tmp_path / "home"


def test_without_a_setting_the_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCOV_CACHE", "")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name, appauthor: tmp_path / name)
    assert cache_folder() == tmp_path / "polycov"
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(MissingDependencyError, match=r"needs platformdirs.*pip install .*set POLYCOV_CACHE"):
        cache_folder()


# Locks

HOLD = """
import sys
from pathlib import Path
from polycov.system.files import try_lock, wait_for_lock
with (try_lock if sys.argv[2] == "try" else wait_for_lock)(Path(sys.argv[1])) as held:
    print("held" if held in (True, None) else "taken", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(params=["try", "wait"])
def holder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until it reads a line."""
    arguments = [sys.executable, "-c", HOLD, str(tmp_path / "lock"), request.param]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_lock_of_another_process_is_taken_until_it_releases_it(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with try_lock(tmp_path / "lock") as free:
        assert not free
    holder.communicate("\n")
    with try_lock(tmp_path / "lock") as free:
        assert free


def test_a_lock_is_released_when_its_process_is_killed(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    waited = threading.Event()

    def wait() -> None:
        with wait_for_lock(tmp_path / "lock"):
            waited.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not waited.wait(0.2)
    holder.kill()
    assert waited.wait(10)
    thread.join()


def test_a_lock_is_held_once_in_a_process_too(tmp_path: Path) -> None:
    with wait_for_lock(tmp_path / "lock"), try_lock(tmp_path / "lock") as free:
        assert not free
    with try_lock(tmp_path / "lock") as free, try_lock(tmp_path / "lock") as again:
        assert free
        assert not again


def test_a_lock_is_released_after_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), try_lock(tmp_path / "lock"):
        raise KeyError
    assert os.listdir(tmp_path) == []
    with pytest.raises(KeyError), wait_for_lock(tmp_path / "lock"):
        raise KeyError
    with try_lock(tmp_path / "lock") as free:
        assert free

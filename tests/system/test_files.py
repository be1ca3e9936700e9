import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polycov.errors import MissingDependencyError, PolycovError
from polycov.system.files import cache_folder, read_lines, remove_temporary_files, write_file, write_text

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


def left_behind(folder: Path, name: str) -> Path:
    """What a process that was killed while it wrote a file left."""
    code = f"""
import os
from pathlib import Path
from polycov.system.files import write_file
write_file(Path({str(folder / name)!r}), lambda temporary: os._exit(9))
"""
    before = set(folder.iterdir())
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    (path,) = set(folder.iterdir()) - before
    return path


def test_writing_again_removes_what_a_kill_left_of_the_same_file(tmp_path: Path) -> None:
    same, other = left_behind(tmp_path, "a.txt"), left_behind(tmp_path, "b.a.txt")
    assert same.name != left_behind(tmp_path, "a.txt").name  # no one can guess it
    write_text(tmp_path / "a.txt", "text")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a.txt", other])
    remove_temporary_files(tmp_path)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_files_that_another_process_is_writing_are_left_alone(tmp_path: Path) -> None:
    def fill(temporary: Path) -> None:
        remove_temporary_files(tmp_path)
        write_text(tmp_path / "a.txt", "inner")
        temporary.write_text("outer")

    write_file(tmp_path / "a.txt", fill)
    assert (tmp_path / "a.txt").read_text() == "outer"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("text")
    (tmp_path / "a.txt").symlink_to(tmp_path / "precious.txt")
    write_text(tmp_path / "a.txt", "other")
    assert (tmp_path / "precious.txt").read_text() == "text"
    assert (tmp_path / "a.txt").read_text() == "other"
    assert not (tmp_path / "a.txt").is_symlink()


# Reading


def test_lines_are_stripped_and_read_as_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeff ash \r\n\n\u00e9rable\n".encode())
    assert read_lines(tmp_path / "a.txt") == ["ash", "\u00e9rable"]
    (tmp_path / "a.txt").write_bytes(b"\xe9rable")
    with pytest.raises(PolycovError, match=r"^Expected UTF-8 text in '.*a\.txt': .* Save the file as UTF-8\.$"):
        read_lines(tmp_path / "a.txt")


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

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from polycov.system.locks import folder_lock, hold_in_use, try_lock, wait_for_lock

HOLD = """
import sys
from pathlib import Path
from polycov.system.locks import try_lock, wait_for_lock
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
    assert os.listdir(tmp_path) == []


COUNT = """
import sys
from pathlib import Path
from polycov.system.locks import wait_for_lock
folder = Path(sys.argv[1])
for _ in range(60):
    with wait_for_lock(folder / "lock"):
        (folder / "count").write_text(str(int((folder / "count").read_text()) + 1))
"""


def test_waiting_processes_exclude_each_other_although_the_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNT, str(tmp_path)]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert (tmp_path / "count").read_text() == "240"
    assert os.listdir(tmp_path) == ["count"]


def test_a_lock_does_not_follow_a_link(tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.write_text("text")
    (tmp_path / "lock").symlink_to(other)
    with pytest.raises(OSError, match="lock"), wait_for_lock(tmp_path / "lock"):
        pass
    with pytest.raises(OSError, match="lock"), try_lock(tmp_path / "lock"):
        pass
    assert other.read_text() == "text"


def test_a_folder_is_shared_by_many_or_held_by_one(tmp_path: Path) -> None:
    with folder_lock(tmp_path, wait=True), folder_lock(tmp_path, wait=True) as (had, _):
        assert had
        with folder_lock(tmp_path, wait=False) as (alone, _):
            assert not alone
    with folder_lock(tmp_path, wait=False) as (alone, _):
        assert alone
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_mark_of_use_does_not_follow_a_link_or_wait_for_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        os.close(hold_in_use(tmp_path / name))
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "link").read_bytes() == b""

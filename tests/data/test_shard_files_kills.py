"""Kills and full disks only cost what was not stored yet."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from polycov.data.feature_store import FeatureStore
from polycov.data.images import Files, Samples
from polycov.errors import PolycovError
from polycov.progress import LogProgress
from small_store import COUNT, EXPECTED, SAMPLES, fill, flip, make_store, open_store, stored


class Killed(BaseException):
    """Stands for a kill: nothing after it is executed, no clean-up either."""


class Disk:
    """Fails at the nth operation that changes the disk, after half of the data if it is a write."""

    def __init__(self, patch: pytest.MonkeyPatch, step: int, error: BaseException, *, for_good: bool) -> None:
        self.steps_left, self.error, self.for_good = step, error, for_good
        self.failed = False
        real_open = Path.open

        def open_file(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
            file: Any = real_open(path, mode, *args, **options)
            if mode in ("wb", "ab+"):
                real_write = file.write
                file.write = lambda data: self.write(file, real_write, bytes(data))
            return file

        patch.setattr(Path, "open", open_file)
        for owner, name in ((os, "fsync"), (os, "replace"), (Path, "touch"), (Path, "unlink")):
            patch.setattr(owner, name, self.failing(getattr(owner, name)))

    def step(self) -> None:
        if self.failed and not self.for_good:
            return
        if self.steps_left == 0:
            self.failed = True
            raise self.error
        self.steps_left -= 1

    def write(self, file: Any, real_write: Callable[[bytes], int], data: bytes) -> int:
        try:
            self.step()
        except BaseException:
            real_write(data[: len(data) // 2])
            file.flush()
            raise
        return real_write(data)

    def failing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.step()
            return function(*args, **options)

        return call


def check_stored(store: FeatureStore) -> None:
    """Features that count as stored are right."""
    missing = set(store.missing())
    there = [i for i in range(COUNT) if i not in missing]
    assert torch.equal(store.features(SAMPLES, there), EXPECTED[there].float())


def test_a_kill_between_any_two_steps_only_costs_what_was_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = stored(make_store(tmp_path / "undisturbed"))
    recomputed = []
    for step in range(1000):
        cache = tmp_path / str(step)
        with monkeypatch.context() as patch:
            disk = Disk(patch, step, Killed(), for_good=True)
            with suppress(Killed):
                make_store(cache)
        lines: list[str] = []
        store = open_store(cache, progress=LogProgress(lines.append))
        assert all(line.endswith("not in the index.") for line in lines)  # the index never names a damaged shard
        check_stored(store)
        recomputed.append(len(fill(store)))
        assert torch.equal(stored(open_store(cache)), undisturbed)
        assert not list(store.folder.glob(".*"))  # temporary files
        if not disk.failed:
            break
    assert recomputed == sorted(recomputed, reverse=True)
    assert set(recomputed) == {11, 7, 3, 0}


def test_a_kill_while_damage_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path / "damaged")
    flip(open_store(tmp_path / "damaged"))
    for step in range(1000):
        cache = tmp_path / str(step)
        shutil.copytree(tmp_path / "damaged", cache)
        with monkeypatch.context() as patch:
            disk = Disk(patch, step, Killed(), for_good=True)
            with suppress(Killed):
                fill(open_store(cache))
        store = open_store(cache)
        check_stored(store)
        fill(store)
        assert torch.equal(stored(open_store(cache)), EXPECTED.float())
        if not disk.failed:
            break
    assert step > 5


def test_a_full_disk_only_costs_what_was_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(1000):
        cache, store, raised = tmp_path / str(step), None, None
        with monkeypatch.context() as patch:
            disk = Disk(patch, step, OSError(errno.ENOSPC, "No space left on device"), for_good=False)
            try:
                store = open_store(cache)
                fill(store)
            except OSError as error:
                raised = error
        assert raised is None or raised.errno == errno.ENOSPC
        if raised and store:
            assert Path(str(raised.filename)).parent == store.folder
            check_stored(store)
            store.flush()  # there is space again
            fill(store)
            assert torch.equal(stored(store), EXPECTED.float())
        again = open_store(cache)
        check_stored(again)
        fill(again)
        assert torch.equal(stored(open_store(cache)), EXPECTED.float())
        if not disk.failed:
            break
    assert step > 20


def test_a_disk_that_is_too_small_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=500)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(PolycovError, match=r"^The features need 0.0 GB in .*only 0.0 GB are free.*POLYCOV_CACHE"):
            open_store(tmp_path)
    make_store(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert open_store(tmp_path).missing() == []  # nothing to write


CHILD = """
import sys, torch
from pathlib import Path
from polycov.data.feature_store import FeatureStore

rank, world, count = map(int, sys.argv[2:])
names = [f"{i:05d}.jpg" for i in range(count)]
store = FeatureStore.open(Path(sys.argv[1]), {}, names, (64, 64, 64), shard_size=8)
print("open", flush=True)
sys.stdin.readline()
indices = store.missing(rank, world)
for i in range(0, len(indices), 3):
    some = indices[i : i + 3]
    store.write(some, torch.tensor(some).view(-1, 1, 1, 1).expand(-1, 64, 64, 64))
    print(some[-1], flush=True)
"""


def start_child(cache: Path, rank: int, world: int, count: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", CHILD, str(cache), str(rank), str(world), str(count)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def check_children(cache: Path, count: int) -> FeatureStore:
    names = [f"{i:05d}.jpg" for i in range(count)]
    store = FeatureStore.open(cache, {}, names, (64, 64, 64), shard_size=8)
    missing = set(store.missing())
    samples = Samples(Files(Path()), names, [0] * count)
    for i in set(range(count)) - missing:
        assert bool((store.features(samples, [i]) == i).all())
    return store


@pytest.mark.slow
def test_a_killed_process_leaves_a_store_that_can_be_filled(tmp_path: Path) -> None:
    child = start_child(tmp_path, 0, 1, 1000)
    assert child.stdin is not None
    assert child.stdout is not None
    with child, child.stdin, child.stdout:
        child.stdin.write("go\n")
        child.stdin.flush()
        while child.stdout.readline() not in ("50\n", ""):
            pass
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    missing = check_children(tmp_path, 1000).missing()
    assert 8 <= len(missing) <= 1000 - 48
    assert missing == list(range(missing[0], 1000))


@pytest.mark.slow
def test_processes_fill_a_store_at_the_same_time(tmp_path: Path) -> None:
    children = [start_child(tmp_path, rank, 2, 100) for rank in (0, 1, 1)]  # the last is of another program
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate()
        assert child.returncode == 0
    assert check_children(tmp_path, 100).missing() == []

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polycov.data import shard_files
from polycov.data.feature_store import FeatureStore
from polycov.data.images import Files, Samples
from polycov.errors import PolycovError
from polycov.progress import SILENT, LogProgress
from small_store import (
    COUNT,
    EXPECTED,
    SAMPLES,
    SHAPE,
    SHARD,
    fill,
    make_store,
    open_store,
    shard_path,
    stored,
)

# Damage


def truncate(store: FeatureStore) -> None:
    with shard_path(store, 1).open("rb+") as file:
        file.truncate(150)


def empty(store: FeatureStore) -> None:
    shard_path(store, 1).write_bytes(b"")


def lengthen(store: FeatureStore) -> None:
    with shard_path(store, 1).open("ab") as file:
        file.write(b"\0")


def flip(store: FeatureStore) -> None:
    content = bytearray(shard_path(store, 1).read_bytes())
    content[-7] ^= 1
    shard_path(store, 1).write_bytes(content)


def change_dtype(store: FeatureStore) -> None:
    np.save(shard_path(store, 1), np.load(shard_path(store, 1)).view(np.int16))


def widen(store: FeatureStore) -> None:
    np.save(shard_path(store, 1), np.load(shard_path(store, 1)).astype(np.float32))


def swap(store: FeatureStore) -> None:
    shutil.copy(shard_path(store, 0), shard_path(store, 1))


def remove(store: FeatureStore) -> None:
    shard_path(store, 1).unlink()


def change_checksum(store: FeatureStore) -> None:
    rows = [json.loads(line) for line in (store.folder / "index.jsonl").read_text().splitlines()]
    rows[1]["crc32"] += 1
    (store.folder / "index.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


SHARD_DAMAGE: dict[Callable[[FeatureStore], None], str] = {
    truncate: "150 bytes instead of 224",
    empty: "another dtype or shape",
    lengthen: "225 bytes instead of 224",
    flip: "wrong checksum",
    change_dtype: "another dtype or shape",
    widen: "another dtype or shape",
    swap: "wrong checksum",
    remove: "it is missing, or not a file that can be read",
    change_checksum: "wrong checksum",
}


@pytest.mark.parametrize("damage", SHARD_DAMAGE)
def test_a_damaged_shard_is_named_and_recomputed(tmp_path: Path, damage: Callable[[FeatureStore], None]) -> None:
    damage(make_store(tmp_path))
    lines: list[str] = []
    store = open_store(tmp_path, progress=LogProgress(lines.append))
    assert lines == [f"{str(shard_path(store, 1))!r} is recomputed: {SHARD_DAMAGE[damage]}."]
    assert not shard_path(store, 1).exists()
    assert fill(store) == [4, 5, 6, 7]
    assert torch.equal(stored(store), EXPECTED.float())
    assert torch.equal(stored(open_store(tmp_path)), EXPECTED.float())


def remove_index(store: FeatureStore) -> None:
    (store.folder / "index.jsonl").unlink()


def empty_index(store: FeatureStore) -> None:
    (store.folder / "index.jsonl").write_text("")


def remove_identity(store: FeatureStore) -> None:
    (store.folder / "identity.json").unlink()


def change_identity(store: FeatureStore) -> None:
    file = store.folder / "identity.json"
    file.write_text(file.read_text().replace("tiny", "other"))


def damage_identity(store: FeatureStore) -> None:
    (store.folder / "identity.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (remove_index, "not in the index"),
        (empty_index, "not in the index"),
        (remove_identity, "of unknown origin"),
        (change_identity, "of unknown origin"),
        (damage_identity, "of unknown origin"),
    ],
)
def test_shards_of_unknown_content_are_recomputed(
    tmp_path: Path, damage: Callable[[FeatureStore], None], problem: str
) -> None:
    damage(make_store(tmp_path))
    lines: list[str] = []
    store = open_store(tmp_path, progress=LogProgress(lines.append))
    assert sorted(lines) == [f"{str(shard_path(store, i))!r} is recomputed: {problem}." for i in range(3)]
    assert fill(store) == list(range(COUNT))
    assert torch.equal(stored(open_store(tmp_path)), EXPECTED.float())


@pytest.mark.parametrize(
    "line", ["{", "[1, 2]", '{"shard": 1}', '{"shard": "x", "crc32": 1}', '{"shard": 1, "crc32": null}']
)
def test_a_damaged_line_of_the_index_costs_only_later_lines(tmp_path: Path, line: str) -> None:
    index = make_store(tmp_path).folder / "index.jsonl"
    lines = index.read_text().splitlines()
    index.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    messages: list[str] = []
    store = open_store(tmp_path, progress=LogProgress(messages.append))
    assert messages[0] == f"{str(index)!r} is damaged; shards without a valid line are recomputed."
    assert fill(store) == [4, 5, 6, 7, 8, 9, 10]
    messages.clear()
    again = open_store(tmp_path, progress=LogProgress(messages.append))
    assert (again.missing(), messages) == ([], [])
    assert torch.equal(stored(again), EXPECTED.float())


def test_an_incomplete_last_line_of_the_index_costs_one_shard(tmp_path: Path) -> None:
    index = make_store(tmp_path).folder / "index.jsonl"
    index.write_bytes(index.read_bytes()[:-5])
    store = open_store(tmp_path)
    assert fill(store) == [8, 9, 10]
    assert torch.equal(stored(open_store(tmp_path)), EXPECTED.float())


@pytest.mark.parametrize("row", [{"shard": -1, "crc32": 1}, {"shard": 3, "crc32": 1}])
def test_entries_without_images_are_dropped(tmp_path: Path, row: dict[str, int]) -> None:
    index = make_store(tmp_path).folder / "index.jsonl"
    with index.open("a") as file:
        file.write(json.dumps(row) + "\n")
    assert open_store(tmp_path).missing() == []
    assert len(index.read_text().splitlines()) == 3


def test_a_shard_replaced_while_it_was_checked_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path)
    flip(store)
    slow = shard_files.ShardFiles(store.folder, (COUNT, *SHAPE), SHARD, SILENT)
    drop = slow._drop

    def drop_late(shards: set[int]) -> None:
        assert shards == {1}
        assert fill(open_store(tmp_path)) == [4, 5, 6, 7]  # another process was faster
        drop(shards)

    monkeypatch.setattr(slow, "_drop", drop_late)
    slow.refresh()
    assert open_store(tmp_path).missing() == []


# Kills and full disks


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

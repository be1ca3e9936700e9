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
from polycov.errors import NonFiniteError, PolycovError
from polycov.progress import SILENT, LogProgress, Progress

COUNT, SHAPE, SHARD = 11, (3, 2, 2), 4  # shards of 4, 4 and 3 images
NAMES = [f"{i:02d}.jpg" for i in range(COUNT)]
SAMPLES = Samples(Files(Path()), NAMES, [0] * COUNT)
IDENTITY = {"backbone": "tiny", "mean": (0.5, 0.5)}
EXPECTED = torch.randn(COUNT, *SHAPE, generator=torch.Generator().manual_seed(0)).half()


def open_store(cache: Path, identity: Any = IDENTITY, progress: Progress = SILENT) -> FeatureStore:
    return FeatureStore.open(cache, identity, NAMES, SHAPE, shard_size=SHARD, progress=progress)


def fill(store: FeatureStore, rank: int = 0, world: int = 1) -> list[int]:
    indices = store.missing(rank, world)
    for i in range(0, len(indices), 3):  # batches that do not fit the shards
        store.write(indices[i : i + 3], EXPECTED[indices[i : i + 3]])
    store.flush()
    return indices


def make_store(cache: Path) -> FeatureStore:
    store = open_store(cache)
    assert fill(store) == list(range(COUNT))
    return store


def stored(store: FeatureStore) -> torch.Tensor:
    return store.features(SAMPLES, range(COUNT))


def shard(store: FeatureStore, index: int) -> Path:
    return store.folder / f"shard-{index:06d}.npy"


def test_features_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert torch.equal(stored(make_store(tmp_path)), EXPECTED.float())
    store = open_store(tmp_path)
    assert store.missing() == []
    assert torch.equal(stored(store), EXPECTED.float())
    assert stored(store).dtype == torch.float32
    assert torch.equal(store.features(SAMPLES, [9, 0, 9]), EXPECTED[[9, 0, 9]].float())


def test_features_are_found_by_name(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    some = SAMPLES.select([7, 2, 5])
    assert torch.equal(store.features(some, [0, 2]), EXPECTED[[7, 5]].float())
    batches = list(store.batches(some, 2))
    assert [len(batch) for batch in batches] == [2, 1]
    assert torch.equal(torch.cat(batches), EXPECTED[[7, 2, 5]].float())


@pytest.mark.parametrize(("shape", "channels", "locations"), [((3, 5, 7), 3, 35), ((35, 3), 3, 35)])
def test_channels_and_locations(tmp_path: Path, shape: tuple[int, ...], channels: int, locations: int) -> None:
    store = FeatureStore.open(tmp_path, {}, NAMES, shape)
    assert (store.channels, store.locations, store.shape) == (channels, locations, shape)


def test_bytes_on_disk(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert store.bytes_on_disk == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert store.bytes_on_disk > EXPECTED.numel() * 2


def test_shards_are_ordinary_numpy_files(tmp_path: Path) -> None:
    array = np.load(shard(make_store(tmp_path), 2))
    assert array.dtype == np.float16
    np.testing.assert_array_equal(array, EXPECTED[8:].numpy())


def test_rows_may_be_written_in_any_order_as_arrays_or_tensors(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for index in torch.randperm(COUNT, generator=torch.Generator().manual_seed(1)).tolist():
        store.write([index], EXPECTED[[index]].float().requires_grad_() if index % 2 else EXPECTED[[index]].numpy())
    assert torch.equal(stored(store), EXPECTED.float())


def test_an_incomplete_shard_is_missing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.write(range(7), EXPECTED[:7])
    assert store.missing() == [4, 5, 6, 7, 8, 9, 10]
    store.flush()
    with pytest.raises(PolycovError, match=r"^The features of '04.jpg' are missing in "):
        stored(store)
    assert torch.equal(store.features(SAMPLES, range(4)), EXPECTED[:4].float())
    store.write([7], EXPECTED[[7]])
    assert open_store(tmp_path).missing() == [8, 9, 10]


def test_an_unknown_image_is_named(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with pytest.raises(PolycovError, match=r"^The features of 'other.jpg' are missing in "):
        store.features(Samples(Files(Path()), ["other.jpg"], [0]), [0])


def test_processes_share_the_work_and_read_each_other(tmp_path: Path) -> None:
    stores = [open_store(tmp_path) for _ in range(2)]
    first = fill(stores[0], 0, 2)
    assert first == [0, 1, 2, 3, 8, 9, 10]
    assert fill(stores[1], 1, 2) == [4, 5, 6, 7]  # listed after the first process had finished
    for store in stores:
        assert torch.equal(stored(store), EXPECTED.float())
        assert store.missing() == []


def test_programs_that_fill_the_same_store_do_no_harm(tmp_path: Path) -> None:
    stores = [open_store(tmp_path) for _ in range(2)]
    indices = [store.missing() for store in stores]
    assert indices[0] == indices[1]
    for i in range(COUNT):
        for store in stores:
            store.write([i], EXPECTED[[i]])
    assert torch.equal(stored(stores[0]), stored(stores[1]))
    assert len((stores[0].folder / "index.jsonl").read_text().splitlines()) == 3
    assert open_store(tmp_path).missing() == []


def test_many_shards_keep_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "MAX_MAPPED", 1)
    store = make_store(tmp_path)
    assert torch.equal(store.features(SAMPLES, [0, 10, 1, 9]), EXPECTED[[0, 10, 1, 9]].float())


@pytest.mark.parametrize(
    ("identity", "names", "shape", "shard_size"),
    [
        ({"backbone": "other", "mean": (0.5, 0.5)}, NAMES, SHAPE, SHARD),
        (IDENTITY, [*NAMES[1:], "new.jpg"], SHAPE, SHARD),
        (IDENTITY, NAMES[1:], SHAPE, SHARD),
        (IDENTITY, NAMES, (2, 3, 2), SHARD),
        (IDENTITY, NAMES, SHAPE, 5),
    ],
)
def test_other_features_have_their_own_folder(
    tmp_path: Path, identity: dict[str, Any], names: list[str], shape: tuple[int, ...], shard_size: int
) -> None:
    folder = make_store(tmp_path).folder
    other = FeatureStore.open(tmp_path, identity, names, shape, shard_size=shard_size)
    assert other.folder != folder
    assert len(other.missing()) == len(names)
    assert open_store(tmp_path).missing() == []


def test_the_order_of_the_identity_does_not_matter(tmp_path: Path) -> None:
    make_store(tmp_path)
    assert open_store(tmp_path, dict(reversed(IDENTITY.items()))).missing() == []


# Damage


def truncate(store: FeatureStore) -> None:
    with shard(store, 1).open("rb+") as file:
        file.truncate(150)


def empty(store: FeatureStore) -> None:
    shard(store, 1).write_bytes(b"")


def lengthen(store: FeatureStore) -> None:
    with shard(store, 1).open("ab") as file:
        file.write(b"\0")


def flip(store: FeatureStore) -> None:
    content = bytearray(shard(store, 1).read_bytes())
    content[-7] ^= 1
    shard(store, 1).write_bytes(content)


def change_dtype(store: FeatureStore) -> None:
    np.save(shard(store, 1), np.load(shard(store, 1)).view(np.int16))


def widen(store: FeatureStore) -> None:
    np.save(shard(store, 1), np.load(shard(store, 1)).astype(np.float32))


def swap(store: FeatureStore) -> None:
    shutil.copy(shard(store, 0), shard(store, 1))


def remove(store: FeatureStore) -> None:
    shard(store, 1).unlink()


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
    remove: "No such file or directory",
    change_checksum: "wrong checksum",
}


@pytest.mark.parametrize("damage", SHARD_DAMAGE)
def test_a_damaged_shard_is_named_and_recomputed(tmp_path: Path, damage: Callable[[FeatureStore], None]) -> None:
    damage(make_store(tmp_path))
    lines: list[str] = []
    store = open_store(tmp_path, progress=LogProgress(lines.append))
    assert lines == [f"{str(shard(store, 1))!r} is recomputed: {SHARD_DAMAGE[damage]}."]
    assert not shard(store, 1).exists()
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
    assert sorted(lines) == [f"{str(shard(store, i))!r} is recomputed: {problem}." for i in range(3)]
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


def check(store: FeatureStore) -> None:
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
        check(store)
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
        check(store)
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
            check(store)
            store.flush()  # there is space again
            fill(store)
            assert torch.equal(stored(store), EXPECTED.float())
        again = open_store(cache)
        check(again)
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


# Arguments


@pytest.mark.parametrize(
    ("indices", "features", "message"),
    [
        ([0, 1], torch.zeros(1, *SHAPE), r"shape \(2, 3, 2, 2\) and indices below 11, got \(1, 3, 2, 2\) and \[0, 1\]"),
        ([0], torch.zeros(1, 2, 2, 3), r"shape \(1, 3, 2, 2\)"),
        ([-1], torch.zeros(1, *SHAPE), r"indices below 11, got .* and \[-1\]"),
        ([11], torch.zeros(1, *SHAPE), r"indices below 11, got .* and \[11\]"),
    ],
)
def test_wrong_shapes_and_indices_are_refused(
    tmp_path: Path, indices: list[int], features: torch.Tensor, message: str
) -> None:
    with pytest.raises(PolycovError, match=message):
        open_store(tmp_path).write(indices, features)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 70000.0])
def test_features_that_float16_cannot_hold_are_refused_by_name(tmp_path: Path, value: float) -> None:
    store, features = open_store(tmp_path), torch.zeros(4, *SHAPE)
    features[2, 0, 0, 0] = value
    with pytest.raises(NonFiniteError, match=r"at most 65504, got NaN, Inf or larger values for 02\.jpg\.$"):
        store.write(range(4), features)
    assert len(store.missing()) == COUNT


@pytest.mark.parametrize(
    ("names", "shape", "message"),
    [
        (["a", "b", "a"], SHAPE, "image names without duplicates"),
        (NAMES, (3,), r"shape \(C, H, W\) or \(N, C\).*got \(3,\)"),
        (NAMES, (3, 0), r"got \(3, 0\)"),
    ],
)
def test_invalid_stores_are_refused(tmp_path: Path, names: list[str], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        FeatureStore.open(tmp_path, {}, names, shape)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    store = FeatureStore.open(tmp_path, {}, [name], (2, 3))
    store.write([0], torch.ones(1, 2, 3))
    assert bool((store.features(Samples(Files(Path()), [name], [0]), [0]) == 1).all())

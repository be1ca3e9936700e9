"""Damaged files of a store are named, and their shards computed again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from polycov.data import shard_files
from polycov.data.feature_store import FeatureStore
from polycov.progress import SILENT, LogProgress
from small_store import COUNT, EXPECTED, SHAPE, SHARD, fill, flip, make_store, open_store, shard_path, stored


def truncate(store: FeatureStore) -> None:
    with shard_path(store, 1).open("rb+") as file:
        file.truncate(150)


def empty(store: FeatureStore) -> None:
    shard_path(store, 1).write_bytes(b"")


def lengthen(store: FeatureStore) -> None:
    with shard_path(store, 1).open("ab") as file:
        file.write(b"\0")


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

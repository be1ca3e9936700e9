import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polycov.data import shard_files
from polycov.data.feature_store import FeatureStore
from polycov.data.images import Files, Samples
from polycov.errors import NonFiniteError, PolycovError
from small_store import (
    COUNT,
    EXPECTED,
    IDENTITY,
    NAMES,
    SAMPLES,
    SHAPE,
    SHARD,
    fill,
    make_store,
    open_store,
    shard_path,
    stored,
)


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


def test_shards_are_ordinary_numpy_files(tmp_path: Path) -> None:
    array = np.load(shard_path(make_store(tmp_path), 2))
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

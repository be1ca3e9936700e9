"""A small feature store for tests, and the features in it."""

from pathlib import Path
from typing import Any

import torch

from polycov.data.feature_store import FeatureStore
from polycov.data.images import Files, Samples
from polycov.progress import SILENT, Progress

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


def shard_path(store: FeatureStore, index: int) -> Path:
    return store.folder / f"shard-{index:06d}.npy"


def flip(store: FeatureStore) -> None:
    content = bytearray(shard_path(store, 1).read_bytes())
    content[-7] ^= 1
    shard_path(store, 1).write_bytes(content)

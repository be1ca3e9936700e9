"""An embedding of given features, as if a network had made them."""

from pathlib import Path
from typing import Any

import numpy as np

from polycov.inference.embedding_folder import EmbeddingFolder, Maker
from polycov.inference.embedding_shards import Shard
from polycov.training.config import ImageOptions, NetworkOptions

Array = np.ndarray[Any, Any]


def write_embedding(
    path: Path, features: Array, shard_size: int = 16, skipped: tuple[int, ...] = ()
) -> EmbeddingFolder:
    """Images are called 0.jpg, 1.jpg, …; those of ``skipped`` have no feature."""
    folder, dtype = EmbeddingFolder(path), "float32"
    names = [f"/{i}.jpg" for i in range(len(features))]
    identity: dict[str, Any] = {"model": "", "spec": "", "dimensions": features.shape[1], "preprocessing": {}}
    identity |= {"paths": ["/"], "working_folder": None, "shard_size": shard_size, "format": "npz", "dtype": dtype}
    folder.prepare(identity, Maker("average", None, 0, ImageOptions(), NetworkOptions()), iter(names))
    for index, start in enumerate(range(0, len(features), shard_size)):
        rows = [i for i in range(start, min(start + shard_size, len(features))) if i not in skipped]
        shard = Shard([names[i] for i in rows], features[rows].astype(dtype))
        folder.write_shard(
            index, "npz", shard, {names[i]: "broken" for i in skipped if start <= i < start + shard_size}
        )
    return folder


def clusters(count: int, width: int, centres: int, seed: int = 0, spread: float = 0.5) -> Array:
    """Features around random centres."""
    rng = np.random.default_rng(seed)
    middles = np.random.default_rng(0).normal(size=(centres, width))
    return middles[rng.integers(0, centres, count)] + spread * rng.normal(size=(count, width))

"""How fast the owner of a feature store takes features from workers and writes them."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from polycov.data.feature_store import FeatureStore
from polycov.engines.engine import Engine, EngineOptions
from polycov.engines.work import Work

SHARD, SHAPE = 256, (320, 10, 10)  # of EfficientNet-Lite0 at 320 px


class ConstantFeatures(Work[int, tuple[int, torch.Tensor]]):
    """Features that cost nothing to compute, a shard at a time."""

    uses_gpu = False

    def __call__(self, tasks: Iterable[int]) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields the number of each shard and its features."""
        for shard in tasks:
            yield shard, torch.full((SHARD, *SHAPE), float(shard % 100), dtype=torch.float16)


def measure_owner(options: EngineOptions, shards: int = 20) -> str:
    """Returns the rate at which shards are sent, checked and written, in images and MB per second.

    Args:
        options: who "computes".
        shards: how many, of 256 images with 100 locations × 320 channels each.
    """
    with TemporaryDirectory() as folder, Engine(options) as engine:
        names = [f"{i:08d}" for i in range(SHARD * shards)]
        store = FeatureStore.open(Path(folder), {"what": "constant"}, names, SHAPE)
        if engine.shared:
            list(engine.run(ConstantFeatures(), [0]))  # processes are up
        begin = time.perf_counter()
        for shard, features in engine.run(ConstantFeatures(), range(shards)):
            store.write_encoded(range(shard * SHARD, (shard + 1) * SHARD), features)
        seconds = time.perf_counter() - begin
    megabytes = shards * SHARD * store.bytes_per_image / 1e6
    return f"{shards * SHARD / seconds:.0f} images/s, {megabytes / seconds:.0f} MB/s"

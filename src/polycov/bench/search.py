"""Search: recall of the index against exact search, and the time of both, on generated clustered features."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polycov.bench.tables import Row
from polycov.inference.embedding_folder import EmbeddingFolder, Maker
from polycov.inference.embedding_shards import Array, Shard
from polycov.inference.gallery import Gallery
from polycov.inference.nearest import Neighbours, exact_nearest, indexed_nearest
from polycov.inference.search_index import SearchIndex
from polycov.inference.similarity import unit_rows
from polycov.progress import SILENT, Progress
from polycov.training.config import ImageOptions, NetworkOptions

WIDTH, PER_CLUSTER, QUERIES, TOP = 256, 50, 100, 10
SHARD = 1024


def search_times(images: int, progress: Progress = SILENT) -> Iterator[Row]:
    """Yields a row for exact search and for the index: recall@10, seconds to make it, milliseconds per query, bytes.

    Args:
        images: how many generated features.
        progress: receives what is done.
    """
    with TemporaryDirectory() as folder:
        features = ClusteredFeatures(max(images // PER_CLUSTER, 1))
        write_features(Path(folder), features, images)
        yield from compare_searches(Gallery(folder), features.rows(QUERIES, seed=-1), progress)


def compare_searches(gallery: Gallery, queries: Array, progress: Progress = SILENT) -> Iterator[Row]:
    """Yields a row for exact search and one for the index of an embedding."""
    units, shards = unit_rows(torch.from_numpy(queries)), gallery.shard_count
    exact, rates = _search(lambda rows: exact_nearest(rows, gallery.blocks(), TOP, progress, shards), units)
    common: Row = {"images": len(gallery), "dimensions": gallery.manifest.dimensions}
    yield {**common, "search": "exact", "recall_at_10": 1.0, "seconds_to_make": 0.0, **rates, "bytes_per_image": 0.0}
    index, making = _timed(lambda: SearchIndex(gallery).prepare(progress))
    found, rates = _search(lambda rows: indexed_nearest(rows, gallery, index, TOP), units)
    raw = [[(number, 0.0) for number in row] for row in index.candidates(units, TOP)]
    rest: Row = {"seconds_to_make": making, **rates, "bytes_per_image": index.size() / len(gallery)}
    yield {**common, "search": "ivfpq", "recall_at_10": recall_at_10(exact, found), **rest}
    alone_row: Row = {"recall_at_10": recall_at_10(exact, raw), **rest, "first_query_ms": None, "query_ms": None}
    yield {**common, "search": "ivfpq, order of the index", **alone_row}


def _search(nearest: Callable[[Tensor], list[Neighbours]], units: Tensor) -> tuple[list[Neighbours], Row]:
    """What all queries find, and the times of a query: alone, and among all."""
    found, seconds = _timed(lambda: nearest(units))
    _, alone = _timed(lambda: nearest(units[:1]))
    return found, {"first_query_ms": 1e3 * alone, "query_ms": 1e3 * seconds / len(units)}


def recall_at_10(exact: list[Neighbours], found: list[Neighbours]) -> float:
    """Returns the share of the ten nearest images that were found, as a mean over queries."""
    shares = []
    for expected, given in zip(exact, found, strict=True):
        wanted = {number for number, _ in expected[:TOP]}
        shares.append(len(wanted & {number for number, _ in given[:TOP]}) / len(wanted))
    return float(np.mean(shares))


class ClusteredFeatures:
    """Features around random centres; their spread falls from one dimension to the next, as that of real ones does."""

    def __init__(self, clusters: int, width: int = WIDTH) -> None:
        self._centres = np.random.default_rng(0).normal(size=(clusters, width)).astype(np.float32)
        self._spread = np.linspace(1.2, 0.2, width, dtype=np.float32)

    def rows(self, count: int, seed: int) -> Array:
        """Returns features (count, D)."""
        rng = np.random.default_rng(seed + 1)
        chosen = self._centres[rng.integers(0, len(self._centres), count)]
        return chosen + self._spread * rng.standard_normal(chosen.shape, dtype=np.float32)


def write_features(path: Path, features: ClusteredFeatures, images: int) -> None:
    """Writes an embedding of generated features."""
    folder = EmbeddingFolder(path)
    identity: dict[str, Any] = {"model": "", "spec": "", "dimensions": WIDTH, "preprocessing": {}, "paths": ["/"]}
    identity |= {"working_folder": None, "shard_size": SHARD, "format": "npz", "dtype": "float32"}
    maker = Maker("average", None, 0, ImageOptions(), NetworkOptions())
    folder.prepare(identity, maker, (f"/{i}.jpg" for i in range(images)))
    for index, start in enumerate(range(0, images, SHARD)):
        names = [f"/{i}.jpg" for i in range(start, min(start + SHARD, images))]
        folder.write_shard(index, "npz", Shard(names, features.rows(len(names), index)), {})


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin

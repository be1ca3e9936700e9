"""Features of images, shard by shard, in this process or in another."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from polycov.data.anywhere import Anywhere, Item, item_name
from polycov.data.broken import SKIP
from polycov.data.loading import load_items
from polycov.data.quantize import quantize
from polycov.engines.engine import Engine
from polycov.engines.work import Work
from polycov.errors import PolycovError
from polycov.inference.embedder import Embedder, EmbedOptions, make_embedder, resolved_source
from polycov.inference.embedding_shards import Array, Shard
from polycov.models.plugins import load_plugin
from polycov.progress import Progress
from polycov.system.devices import choose_device


@dataclass(frozen=True)
class ShardTask:
    """The images of a shard."""

    shard: int
    items: list[Item]


@dataclass(frozen=True)
class Part:
    """Features of one batch.

    Attributes:
        shard: that it belongs to.
        names: of the images.
        features: (images, D), as stored.
        scales: of int8.
        skipped: images of the batch that cannot be read, with the reasons.
        images: how many images it began with.
    """

    shard: int
    names: list[str]
    features: Array
    scales: Array | None
    skipped: dict[str, str]
    images: int


@dataclass(frozen=True)
class Read:
    """A batch of images that were read, of those that a part begins with.

    Attributes:
        shard: that it belongs to.
        names: of the images that can be read.
        skipped: those that cannot, with the reasons.
        images: how many there are of both.
    """

    shard: int
    names: list[str]
    skipped: dict[str, str]
    images: int


def join_parts(parts: list[Part]) -> tuple[Shard, dict[str, str]]:
    """Returns the shard of all its parts, and the images skipped in it."""
    scales = [part.scales for part in parts if part.scales is not None]
    names = [name for part in parts for name in part.names]
    shard = Shard(names, np.concatenate([part.features for part in parts]), np.concatenate(scales) if scales else None)
    return shard, {name: reason for part in parts for name, reason in part.skipped.items()}


class EmbedImages(Work[ShardTask, Part]):
    """Embeds images. Another process makes the embedder itself, of the same files, and checks that it is the same.

    Args:
        options: what to compute, and how.
        engine: who does it.
        count: how many images there are in all.
        embedder: for this process.
        progress: receives which backend runs the backbone.
    """

    def __init__(
        self, options: EmbedOptions, engine: Engine, count: int, embedder: Embedder, progress: Progress
    ) -> None:
        runtime = replace(options.runtime, workers=engine.readers(options.runtime.workers))
        source = resolved_source(options.source)
        self.options, self.count = replace(options, source=source, runtime=runtime), count
        self.digest, self.progress = embedder.digest, progress
        self._embedder: Embedder | None = embedder
        self._device = choose_device(runtime.device)
        self._frozen = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_embedder": None, "_frozen": False, "_device": None}

    def __call__(self, tasks: Iterable[ShardTask]) -> Iterator[Part]:
        """Yields the features of each batch.

        Raises:
            PolycovError: if an image cannot be read, and such images are not skipped.
        """
        embedder, options = self._ready(), self.options
        ahead: deque[tuple[int, list[str]]] = deque()  # shard and names of the batches that are being read
        skipped: dict[str, str] = {}

        def batches() -> Iterator[list[Item]]:
            for task in tasks:
                for i in range(0, len(task.items), options.batch_size):
                    items = task.items[i : i + options.batch_size]
                    ahead.append((task.shard, list(map(item_name, items))))
                    yield items

        def skip(position: int, reason: str) -> None:
            if options.broken == "stop":
                raise PolycovError(f"{reason} Skip such images with {SKIP}.")
            skipped[ahead[0][1][position]] = reason

        def read() -> Iterator[tuple[Tensor, Read]]:
            size = max(min(options.batch_size, self.count), 1)
            workers = min(options.runtime.workers, -(-self.count // size))
            loading = load_items(Anywhere(), embedder.preprocessing, batches(), size, workers, skip)
            for images, positions in loading:
                shard, names = ahead.popleft()
                yield (
                    images.to(self._device),
                    Read(shard, [names[i] for i in positions.tolist()], dict(skipped), len(names)),
                )
                skipped.clear()

        for features, batch in embedder.stream(read()):
            codes, scales = self._stored(features)
            yield Part(batch.shard, batch.names, codes, scales, batch.skipped, batch.images)

    def _ready(self) -> Embedder:
        if self._embedder is None:
            runtime = self.options.runtime
            load_plugin(runtime.plugin)
            # Of the GPUs, this process sees its own alone.
            self._device = choose_device("auto" if runtime.device.startswith("cuda") else runtime.device)
            self._embedder = make_embedder(self.options, self._device)
            if self._embedder.digest != self.digest:
                raise PolycovError(
                    "Another process has other weights of this model: are the files of all machines the same?"
                )
        if not self._frozen:
            size, backend = self.options.batch_size, self.options.runtime.backend
            self._embedder.freeze(backend, images=self.count, batch_size=size, progress=self.progress)
            self._frozen = True
        return self._embedder

    def _stored(self, features: Tensor) -> tuple[Array, Array | None]:
        """Features as they are stored, and their scales if they have any."""
        dtype = self.options.dtype
        if not len(features):
            none = np.zeros(tuple(features.shape), dtype)
            return none, np.zeros(0, np.float32) if dtype == "int8" else None
        codes, scale = quantize(features.cpu(), dtype)
        return codes.numpy(), None if scale is None else scale.numpy()

"""What `embed` returns: features on disk."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polycov.errors import quoted
from polycov.inference.embedding_folder import EmbeddingFolder
from polycov.inference.embedding_shards import Array, Shard


@dataclass(frozen=True)
class Embeddings:
    """Features on disk.

    Attributes:
        folder: folder with the shards.
        images: how many have a feature.
        dimensions: number of dimensions of a feature.
        shards: how many there are.
        skipped: images that could not be read, with the reasons.
    """

    folder: Path
    images: int
    dimensions: int
    shards: int
    skipped: dict[str, str]

    def __str__(self) -> str:
        images = "1 image" if self.images == 1 else f"{self.images} images"
        shards = f"{self.shards} shard{'s' if self.shards > 1 else ''}"
        skipped = f"; {len(self.skipped)} skipped: {quoted(list(self.skipped))}" if self.skipped else ""
        return f"{images}, {self.dimensions} dimensions, {shards} in {self.folder}{skipped}"

    def __iter__(self) -> Iterator[Shard]:
        """Yields the shards, one at a time in memory."""
        return EmbeddingFolder(self.folder).shards()

    def load(self) -> tuple[list[str], Array]:
        """Returns all names, and all features in float32, (images, D).

        Paths are in the order they were given, the images of each folder sorted by name, those of its folders after
        its own.
        """
        shards = list(self)
        return [name for s in shards for name in s.names], np.concatenate([s.values() for s in shards])

"""Equal and nearly equal images within an embedding."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.inference.embeddings import Embeddings
from polycov.inference.found import Duplicates, Hit
from polycov.inference.gallery import Gallery
from polycov.progress import SILENT, Progress

THRESHOLD = 0.9  # finds 9 of 10 recompressed images and nothing wrong: docs/similar_images.md
BLOCK = 2**26  # numbers in memory, of features and of cosines: 256 MiB each
ROWS = 2**16  # features that are compared with one shard after another


def find_duplicates(
    embeddings: str | Path | Embeddings, *, threshold: float = THRESHOLD, progress: Progress = SILENT
) -> Duplicates:
    """Finds images whose features are equal, or nearly so: all pairs are compared, by cosine.

    Two images with a cosine of at least ``threshold`` belong to the same group, and so do those that share such an
    image. Time grows with the square of the number of images, memory only with the number of duplicates.

    Args:
        embeddings: folder that `embed` wrote, or what it returned.
        threshold: the least cosine of duplicates, above 0 and up to 1.
        progress: receives the number of shards done.

    Raises:
        PolycovError: if the embedding is not complete, or the threshold makes no sense.
    """
    if not 0 < threshold <= 1:
        raise PolycovError(f"Expected threshold above 0 and up to 1, got {threshold}.")
    gallery, groups = Gallery(embeddings.folder if isinstance(embeddings, Embeddings) else embeddings), _Groups()
    for rows, numbers, first in _row_blocks(gallery, progress):
        step = max(BLOCK // len(rows), 1) if len(rows) else 1
        for start, block in gallery.blocks(first):
            for i in range(0, len(block), step):
                columns = torch.arange(start + i, start + min(i + step, len(block)))
                cosines = rows @ block[i : i + step].mT
                alike = (cosines >= threshold - 1e-6) & (numbers[:, None] < columns)  # 1e-6: rounding of equal features
                if bool(alike.any()):
                    groups.join(numbers, columns, torch.where(alike, cosines, 0))
    return Duplicates(_named(gallery, groups), threshold, gallery.folder.path)


def _row_blocks(gallery: Gallery, progress: Progress) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Features (n, D), their numbers (n,) and their first shard, as many at a time as fit into memory."""
    size = gallery.manifest.shard_size
    per_block = max(min(BLOCK // gallery.manifest.dimensions, ROWS) // size, 1)
    with progress.task("comparing", gallery.shard_count) as task:
        for first in range(0, gallery.shard_count, per_block):
            shards = range(first, min(first + per_block, gallery.shard_count))
            blocks = [gallery.block(shard) for shard in shards]
            numbers = [shard * size + torch.arange(len(b)) for shard, b in zip(shards, blocks, strict=True)]
            yield torch.cat(blocks), torch.cat(numbers), first
            task.advance(len(shards))


class _Groups:
    """Sets of images that grow together; only images with a duplicate are in memory."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}
        self.largest: dict[int, float] = {}  # cosine of each image

    def root(self, number: int) -> int:
        """Returns the image that stands for the group of another."""
        parent = self._parent.setdefault(number, number)
        while parent != self._parent[parent]:
            self._parent[parent] = self._parent[self._parent[parent]]
            parent = self._parent[parent]
        self._parent[number] = parent
        return parent

    def join(self, rows: Tensor, columns: Tensor, cosines: Tensor) -> None:
        """Adds pairs with a cosine (rows, columns) above 0."""
        for numbers, axis in ((rows, 1), (columns, 0)):
            for i, cosine in enumerate(cosines.amax(axis).tolist()):
                if cosine > 0:
                    number = int(numbers[i])
                    self.largest[number] = max(self.largest.get(number, 0.0), cosine)
        first, second = (cosines > 0).nonzero().unbind(1)
        pairs = torch.stack([self._roots(rows)[first], self._roots(columns)[second]], 1)
        for one, other in pairs.unique(dim=0).tolist():
            self._parent[max(self.root(one), self.root(other))] = min(self.root(one), self.root(other))

    def _roots(self, numbers: Tensor) -> Tensor:
        return torch.tensor([self.root(n) if n in self._parent else n for n in numbers.tolist()])

    def members(self) -> list[list[int]]:
        """Returns the images of each group, sorted."""
        groups: dict[int, list[int]] = {}
        for number in sorted(self.largest):
            groups.setdefault(self.root(number), []).append(number)
        return list(groups.values())


def _named(gallery: Gallery, groups: _Groups) -> tuple[tuple[Hit, ...], ...]:
    names = {number: row[0] for number, row in gallery.rows(groups.largest).items()}
    found = [tuple(Hit(names[n], min(groups.largest[n], 1.0)) for n in members) for members in groups.members()]
    return tuple(sorted(found, key=lambda group: -max(hit.cosine for hit in group)))

"""The features of an embedding as unit vectors, read shard by shard: what search and duplicates look through."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polycov.data.addresses import is_url
from polycov.data.anywhere import Item, item_name
from polycov.inference.embedding_folder import EmbeddingFolder
from polycov.inference.embedding_shards import read_shard
from polycov.inference.similarity import unit_rows
from polycov.system.text import valid_utf8


class Gallery:
    """A complete embedding. An image has a number: that of its shard times the shard size, plus its row in the shard.

    Args:
        path: folder of the embedding.

    Attributes:
        folder: its files.
        manifest: what it was made from.

    Raises:
        PolycovError: if it is not an embedding, or not complete.
    """

    def __init__(self, path: Path | str) -> None:
        self.folder = EmbeddingFolder(path)
        self.manifest = self.folder.manifest
        self._shards = self.folder.shard_paths()

    def __len__(self) -> int:
        """How many images are listed; those that were skipped have no feature."""
        return self.manifest.images

    @property
    def shard_count(self) -> int:
        """The number of shards."""
        return len(self._shards)

    def blocks(self, first: int = 0) -> Iterator[tuple[int, Tensor]]:
        """Yields the number of the first image of each shard, and the unit features (n, D), from shard ``first`` on."""
        for index in range(first, self.shard_count):
            block = self.block(index)
            if len(block):
                yield index * self.manifest.shard_size, block

    def block(self, index: int) -> Tensor:
        """Returns the unit features of a shard, (n, D); n may be 0."""
        values = torch.from_numpy(read_shard(self._shards[index]).values())
        return unit_rows(values) if len(values) else values

    def rows(self, numbers: Iterable[int]) -> dict[int, tuple[str, Tensor]]:
        """Returns names and unit features of images by their numbers; each shard is read once."""
        by_shard: dict[int, list[int]] = {}
        for number in sorted(set(numbers)):
            by_shard.setdefault(number // self.manifest.shard_size, []).append(number)
        found = {}
        for index, members in by_shard.items():
            shard = read_shard(self._shards[index])
            places = [number % self.manifest.shard_size for number in members]
            features = unit_rows(torch.from_numpy(shard.values()[places]))
            for number, place, feature in zip(members, places, features, strict=True):
                found[number] = (shard.names[place], feature)
        return found

    def sample(self, count: int, seed: int = 0) -> Tensor:
        """Returns unit features of at least ``count`` images, or of all, from shards chosen at random."""
        order = np.random.default_rng(seed).permutation(self.shard_count)
        blocks: list[Tensor] = []
        for index in order.tolist():
            if sum(map(len, blocks)) >= count:
                break
            blocks.append(self.block(index))
        return torch.cat(blocks)

    def items(self, names: Iterable[str]) -> dict[str, Item]:
        """Returns where images of these names are, with full paths."""
        wanted = set(names)
        found: dict[str, Item] = {}
        for items in self.folder.image_lists(self.manifest.shard_size):
            for item in items:
                name = item_name(item)
                for spelling in {name, valid_utf8(name)} & wanted:
                    found[spelling] = self._absolute(item)
            if len(found) == len(wanted):
                break
        return found

    def _absolute(self, item: Item) -> Item:
        file = item if isinstance(item, str) else item[0]
        if self.manifest.working_folder is None or is_url(file):
            return item
        full = os.path.join(self.manifest.working_folder, file)
        return full if isinstance(item, str) else (full, *item[1:])

    def fingerprint(self) -> str:
        """Returns a digest of what the features depend on, and of the size and time of every shard."""
        digest = hashlib.sha256(repr(self.manifest).encode("utf-8", "surrogateescape"))
        for path in self._shards:
            status = os.stat(path)
            digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()

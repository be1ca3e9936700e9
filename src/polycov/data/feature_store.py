"""Local features of a frozen backbone, computed once and kept on disk."""

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from polycov.data.channel_basis import ChannelBasis
from polycov.data.images import Samples
from polycov.data.shard_files import DTYPE, Array, ShardFiles
from polycov.errors import NonFiniteError, PolycovError
from polycov.progress import SILENT, Progress

FORMAT_VERSION = 2


class FeatureStore:
    """Local features of all images of a dataset in one folder on disk, read by the names of the images.

    Features are float16, in shards of a few hundred images. A shard counts only once it is complete, on disk and listed
    in the index with its checksum: a kill or a full disk at any moment costs no more than the shards not stored yet.
    Opening a store checks every shard; a damaged one is reported, and its images are missing again.

    Each process of a launcher computes its share of the missing shards::

        store = FeatureStore.open(cache, identity, names, shape)
        indices = store.missing(rank, world)  # whole shards
        for some in batches(indices):
            store.write(some, compute(some))  # a shard is stored as soon as it is complete

    When all processes are done, each can read all features. Separate programs may fill one store at the same time: the
    first to complete a shard stores it.

    With a basis, the coordinates of the features in it are stored: fewer channels. Features are written and read with
    all channels; `coordinates` reads what is stored.

    Attributes:
        names: names of the images; an index is a position in them.
        shape: shape of the features of one image: maps (C, H, W) or tokens (N, C).
        basis: basis in which the features are stored; None if they are stored as they are.
    """

    def __init__(self, files: ShardFiles, names: Sequence[str], basis: ChannelBasis | None = None) -> None:
        """Use `open`."""
        self.names, self.basis = list(names), basis
        self.shape = files.shape[1:] if basis is None else _with_channels(files.shape[1:], basis.components.shape[1])
        self._files = files
        self._rows = {name: i for i, name in enumerate(self.names)}
        self._buffers: dict[int, tuple[Array, set[int]]] = {}  # shards in memory, and the rows written so far

    @classmethod
    def open(
        cls,
        cache: Path,
        identity: Mapping[str, Any],
        names: Sequence[str],
        shape: tuple[int, ...],
        *,
        basis: ChannelBasis | None = None,
        shard_size: int = 256,
        progress: Progress = SILENT,
    ) -> Self:
        """Creates a store, or opens an existing one and checks its shards.

        Args:
            cache: the store is a folder ``features/DIGEST`` in it.
            identity: what the features depend on, as JSON values; another identity is another folder.
            names: names of the images, without duplicates.
            shape: shape of the features of one image: maps (C, H, W) or tokens (N, C).
            basis: the features are stored in this basis; it is part of their identity.
            shard_size: images per shard.
            progress: receives the progress of the check, and a message for each damaged file.

        Raises:
            PolycovError: on duplicate names or an invalid shape, or if the disk is too small for the missing features.
        """
        if len(set(names)) != len(names):
            raise PolycovError("Expected image names without duplicates.")
        if len(shape) not in (2, 3) or min(shape) < 1 or shard_size < 1:
            raise PolycovError(
                f"Expected features of shape (C, H, W) or (N, C) in shards of at least one image, "
                f"got {tuple(shape)} and {shard_size}."
            )
        if basis is not None:
            identity = {**identity, "basis": basis.digest()}
            shape = _with_channels(shape, len(basis.components))
        description = {
            "version": FORMAT_VERSION,
            "identity": identity,
            "names": hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest(),
            "shape": [len(names), *shape],
            "dtype": DTYPE.name,
            "shard_size": shard_size,
        }
        text = json.dumps(description, sort_keys=True)
        folder = cache / "features" / hashlib.sha256(text.encode()).hexdigest()[:32]
        files = ShardFiles(folder, (len(names), *shape), shard_size, progress)
        files.prepare(json.loads(text))
        files.refresh()
        _require_space(files)
        return cls(files, names, basis)

    @property
    def coordinates(self) -> "FeatureStore":
        """The same store, read as it is stored: in the coordinates of its basis, if it has one."""
        return self if self.basis is None else FeatureStore(self._files, self.names)

    @property
    def channels(self) -> int:
        """C, the number of channels."""
        return self.shape[0] if len(self.shape) == 3 else self.shape[1]

    @property
    def locations(self) -> int:
        """N, the number of local features per image."""
        return math.prod(self.shape) // self.channels

    @property
    def folder(self) -> Path:
        """The folder of the store."""
        return self._files.folder

    @property
    def bytes_per_image(self) -> int:
        """The bytes of the stored features of one image."""
        return math.prod(self._files.shape[1:]) * DTYPE.itemsize

    @property
    def shard_size(self) -> int:
        """The number of images in a shard."""
        return self._files.shard_size

    def missing(self, rank: int = 0, world: int = 1) -> list[int]:
        """Returns the indices of the images without stored features, in whole shards.

        Args:
            rank: rank of this process among those that share the work.
            world: the number of these processes. Process r takes the missing shards s with s mod ``world`` = r: no
                shard is taken twice or by none, even if some processes begin before others have listed theirs.
        """
        self._files.refresh()
        return [i for shard in self._files.missing() if shard % world == rank for i in self._files.rows(shard)]

    def write(self, indices: Sequence[int], features: Tensor | Array) -> None:
        """Takes the features of some images, in any order, and stores the shards that are complete.

        Args:
            indices: indices of the images.
            features: (B, …), converted to the basis and to float16.

        Raises:
            PolycovError: if the shape or an index is wrong.
            NonFiniteError: if a feature is not finite, or too large for float16.
            OSError: if a shard cannot be stored. It stays in memory, and `flush` tries again.
        """
        x = torch.as_tensor(features).detach()
        self._require_shape(x, indices, self.shape)
        self.write_encoded(indices, encode(x, self.basis))

    def write_encoded(self, indices: Sequence[int], x: Tensor) -> None:
        """Takes features that are in the basis and in float16 already, see `encode`; otherwise as `write`."""
        self._require_shape(x, indices, self._files.shape[1:])
        finite = x.flatten(1).isfinite().all(1).tolist()
        if not all(finite):
            names = ", ".join(self.names[i] for i, is_finite in zip(indices, finite, strict=True) if not is_finite)
            raise NonFiniteError(f"Expected features of at most 65504, got NaN, Inf or larger values for {names}.")
        for index, row in zip(indices, x.numpy(), strict=True):
            shard, position = divmod(index, self._files.shard_size)
            if shard not in self._buffers:
                self._buffers[shard] = (self._files.empty(shard), set())
            array, written = self._buffers[shard]
            array[position] = row
            written.add(position)
        self.flush()

    def _require_shape(self, x: Tensor, indices: Sequence[int], shape: tuple[int, ...]) -> None:
        if x.shape != (len(indices), *shape) or not all(0 <= i < len(self.names) for i in indices):
            raise PolycovError(
                f"Expected features of shape {(len(indices), *shape)} and indices below {len(self.names)}, "
                f"got {tuple(x.shape)} and {list(indices)}."
            )

    def repeat(self, index: int, original: int) -> None:
        """Stores the shard that begins with an image as a second name of the one that begins with another."""
        size = self._files.shard_size
        if index % size or original % size or min(index, original) + size > len(self.names):
            raise PolycovError(f"Expected the first images of whole shards, got {index} and {original}.")
        self._files.repeat(index // size, original // size)

    def flush(self) -> None:
        """Stores the complete shards that are still in memory; incomplete ones stay there."""
        for shard, (array, written) in list(self._buffers.items()):
            if len(written) == len(array):
                self._files.write(shard, array)
                del self._buffers[shard]

    def features(self, samples: Samples, indices: Sequence[int]) -> Tensor:
        """Returns the features of some images in float32: maps (B, C, H, W) or tokens (B, N, C).

        Raises:
            PolycovError: if the features of an image are missing.
        """
        x = np.empty((len(indices), *self._files.shape[1:]), DTYPE)
        for i, index in enumerate(indices):
            name = samples.name(index)
            shard, position = divmod(self._rows.get(name, -1), self._files.shard_size)
            rows = self._files.read(shard)
            if rows is None:
                raise PolycovError(f"The features of {name!r} are missing in {str(self.folder)!r}.")
            x[i] = rows[position]
        stored = torch.from_numpy(x).float()
        return stored if self.basis is None else self.basis.decode(stored)

    def batches(self, samples: Samples, batch_size: int = 64) -> Iterator[Tensor]:
        """Yields the features of images in order."""
        for begin in range(0, len(samples), batch_size):
            yield self.features(samples, range(begin, min(begin + batch_size, len(samples))))


def encode(features: Tensor, basis: ChannelBasis | None) -> Tensor:
    """Returns features as a store keeps them: in its basis, if it has one, and in float16."""
    return (features if basis is None else basis.encode(features)).to("cpu", torch.float16)


def _with_channels(shape: tuple[int, ...], channels: int) -> tuple[int, ...]:
    """The shape of maps or tokens with another number of channels."""
    return (channels, *shape[1:]) if len(shape) == 3 else (shape[0], channels)


def _require_space(files: ShardFiles) -> None:
    needed = sum(files.size(shard) for shard in files.missing())
    free = shutil.disk_usage(files.folder).free
    if needed > free:
        raise PolycovError(
            f"The features need {needed / 1e9:.1f} GB in {str(files.folder)!r}, but only {free / 1e9:.1f} GB are free. "
            "Set POLYCOV_CACHE to a folder on another disk."
        )

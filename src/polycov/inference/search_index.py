"""The index of a large embedding: inverted lists of product-quantised features (IVF-PQ), by faiss."""

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from polycov.errors import PolycovError, require_module
from polycov.inference.gallery import Gallery
from polycov.progress import SILENT, Progress
from polycov.system.files import is_there, open_to_read, write_file
from polycov.system.json_files import read_object, write_json
from polycov.system.locks import wait_for_lock
from polycov.system.structure import Structured, structure

FORMAT = 1
LEAST = 1000  # images
BYTES = 64  # of a stored feature, at most
DIMENSIONS = 4  # kept for each byte
PER_LIST = 64  # features to fit a centre to
ROUNDS = 10  # of k-means
SAMPLE = 2**28  # numbers of the features that the index is fitted to: 1 GiB
PROBED = 1 / 32  # share of the lists that a search looks into
LEAST_PROBED = 32


@dataclass(frozen=True)
class IndexNote(Structured):
    """What an index file is.

    Attributes:
        format_version: of the index.
        embedding: fingerprint of the embedding that it was made of.
        crc32: of the index file.
    """

    format_version: int
    embedding: str
    crc32: int


class SearchIndex:
    """The index of an embedding, two files in its folder. It is made again when it is damaged or the embedding changed.

    Unit features are reduced to at most 256 principal components, turned at random so that all parts matter alike,
    dealt to the nearest of about 4√n centres, and stored there in at most 64 bytes each. A search looks into the lists
    of the nearest centres. On unit vectors the Euclidean distance orders as the cosine does.

    Args:
        gallery: the embedding.

    Raises:
        MissingDependencyError: if faiss is not installed.
    """

    def __init__(self, gallery: Gallery) -> None:
        sentence = "A search index needs faiss. Install it with: pip install 'polycov[search]', or use --index exact."
        self._faiss = require_module("faiss", sentence)
        self._gallery = gallery
        folder = gallery.folder.path
        self._file, self._note, self._lock = folder / "_search.faiss", folder / "_search.json", folder / "_search.lock"
        self._index: Any = None

    def prepare(self, progress: Progress = SILENT) -> "SearchIndex":
        """Reads the index, or makes it; returns it."""
        with wait_for_lock(self._lock):
            problem = self._problem()
            if problem:
                progress.message(f"making the search index {str(self._file)!r}: {problem}")
                self._make(progress)
            self._index = self._faiss.read_index(str(self._file), self._faiss.IO_FLAG_MMAP)
        lists = self._faiss.extract_index_ivf(self._index)
        lists.nprobe = max(min(LEAST_PROBED, lists.nlist), round(PROBED * lists.nlist))
        return self

    def candidates(self, queries: Tensor, count: int) -> list[list[int]]:
        """Returns the numbers of images that are probably nearest to unit features (Q, D), for each query."""
        numbers = self._index.search(queries.contiguous().numpy(), count)[1]
        return [[number for number in row if number >= 0] for row in numbers.tolist()]

    def size(self) -> int:
        """Returns the bytes of the index file."""
        return self._file.stat().st_size

    def _problem(self) -> str:
        """Why the index has to be made; empty if it does not."""
        if not is_there(self._note):
            return "there is none"
        try:
            note = structure(IndexNote, read_object(self._note), repr(str(self._note)))
            if note.format_version != FORMAT or note.embedding != self._gallery.fingerprint():
                return "the embedding has changed"
            return "" if _crc32(self._file) == note.crc32 else "it is damaged"
        except PolycovError:
            return "it is damaged"

    def _make(self, progress: Progress) -> None:
        gallery, fingerprint = self._gallery, self._gallery.fingerprint()
        index = self._fitted()
        with progress.task("indexing", gallery.shard_count) as task:
            for first, block in gallery.blocks():
                index.add_with_ids(block.numpy(), np.arange(first, first + len(block)))
                task.advance()
        write_file(self._file, lambda temporary: self._faiss.write_index(index, str(temporary)))
        note = {"format_version": FORMAT, "embedding": fingerprint, "crc32": _crc32(self._file)}
        write_json(self._note, note)

    def _fitted(self) -> Any:
        """An empty index, fitted to a sample of the features."""
        images, width = len(self._gallery), self._gallery.manifest.dimensions
        wanted = max(round(4 * math.sqrt(images)), 1)
        sample = self._gallery.sample(max(min(PER_LIST * wanted, SAMPLE // width), LEAST))
        if len(sample) < LEAST:
            raise PolycovError(f"An index needs at least {LEAST} images, got {len(sample)}: use --index exact.")
        lists = max(min(wanted, len(sample) // PER_LIST), 1)
        parts = max(min(BYTES, width // DIMENSIONS), 1)
        kept = min(parts * DIMENSIONS, width)
        # np: without polysemous training, which takes most of the time and is of no use here
        index = self._faiss.index_factory(width, f"PCAR{kept},IVF{lists},PQ{parts}x8np")
        inverted = self._faiss.downcast_index(self._faiss.extract_index_ivf(index))
        for clustering in (inverted.cp, inverted.pq.cp):
            clustering.min_points_per_centroid = 1  # no warning on standard error
            clustering.max_points_per_centroid, clustering.niter = PER_LIST, ROUNDS
        index.train(sample.numpy())
        return index


def _crc32(path: Path) -> int:
    checksum = 0
    with open_to_read(path) as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return checksum

"""The files of a `FeatureStore`: an array in shards, with an index of checksums.

Plain .npy files, which are memory-mapped: HDF5 and Zarr bring a dependency, and neither survives every kill.
"""

import io
import math
import os
import weakref
import zlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from polycov.errors import PolycovError
from polycov.progress import Progress
from polycov.system.files import open_to_read, remove_temporary_files, write_file
from polycov.system.json_files import append_json_lines, read_json, read_json_lines, write_json, write_json_lines
from polycov.system.locks import hold_in_use, wait_for_lock

DTYPE = np.dtype("<f2")
IN_USE = "in-use"  # locked as long as a process uses the folder; its time is that of the last use
IDENTITY = "identity.json"
MAX_MAPPED, MAX_MAPPED_BYTES = 256, 2**28  # shards; each keeps a file open, and what was read of it counts as memory
Array = np.ndarray[Any, Any]


class ShardFiles:
    """A float16 array of ``shape`` in files of ``shard_size`` rows each.

    ``identity.json`` says what the array is, ``shard-NNNNNN.npy`` are its parts, and ``index.jsonl`` has the CRC-32 of
    each stored shard. A shard is written to a temporary file, synced to disk and renamed; only then is it added to the
    index. Shards that are not in the index do not count. Everything that changes the folder holds ``lock``.
    """

    def __init__(self, folder: Path, shape: tuple[int, ...], shard_size: int, progress: Progress) -> None:
        self.folder, self.shape, self.shard_size = folder, shape, shard_size
        self._progress = progress
        self._checksums: dict[int, int] = {}  # of the shards in the index that were checked
        self._mapped: dict[int, Array] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_mapped": {}}  # another process maps its own

    def prepare(self, identity: Any) -> None:
        """Creates the folder, or removes files from it that belong to another identity or are not in the index."""
        self._hold()
        with self._lock():
            remove_temporary_files(self.folder)
            if not self._has_identity(identity):
                self._index.unlink(missing_ok=True)
                self._remove_unlisted(set(), "of unknown origin")
                write_json(self._identity, identity)
            checksums, damaged = self._read_index()
            if damaged:
                self._progress.message(f"{str(self._index)!r} is damaged; shards without a valid line are recomputed.")
                self._write_index(checksums)
            self._remove_unlisted(set(checksums), "not in the index")

    def refresh(self) -> None:
        """Reads the index and checks the shards that are new in it. Damaged ones are dropped and reported."""
        checksums, _ = self._read_index()
        new = [shard for shard, checksum in checksums.items() if self._checksums.get(shard) != checksum]
        damaged: set[int] = set()
        if new:
            with self._progress.task("checking stored features", len(new)) as task:
                for shard in new:
                    if self._problem(shard, checksums[shard]):
                        damaged.add(shard)
                    task.advance()
        if damaged:
            self._drop(damaged)
        self._checksums = {shard: checksums[shard] for shard in checksums if shard not in damaged}

    def missing(self) -> list[int]:
        """Returns the shards that are not stored, as of the last `refresh`."""
        return [shard for shard in range(-(-self.shape[0] // self.shard_size)) if shard not in self._checksums]

    def rows(self, shard: int) -> range:
        """Returns the rows of a shard."""
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.shape[0]))

    def size(self, shard: int) -> int:
        """Returns the bytes of the file of a shard."""
        return len(self._header(shard)) + math.prod(self._shape_of(shard)) * DTYPE.itemsize

    def empty(self, shard: int) -> Array:
        """Returns an array for the rows of a shard."""
        return np.empty(self._shape_of(shard), DTYPE)

    def write(self, shard: int, array: Array) -> None:
        """Stores a shard, unless another program has done so.

        Raises:
            OSError: if it cannot be written; it is not stored then.
        """
        header = self._header(shard)
        content = np.ascontiguousarray(array, DTYPE).data.cast("B")

        def fill(temporary: Path) -> None:
            with temporary.open("wb") as file:
                file.write(header)
                file.write(content)

        with self._lock():
            if shard in self._read_index()[0]:
                return
            write_file(self._path(shard), fill)
            checksum = zlib.crc32(content, zlib.crc32(header))
            append_json_lines(self._index, [{"shard": shard, "crc32": checksum}])
            self._checksums[shard] = checksum

    def repeat(self, shard: int, original: int) -> None:
        """Stores a shard that has the same rows as another, as a second name of its file, which takes no disk space.

        Raises:
            OSError: if the file system has no hard links.
        """
        with self._lock():
            os.link(self._path(original), self._path(shard))
            append_json_lines(self._index, [{"shard": shard, "crc32": self._checksums[original]}])
            self._checksums[shard] = self._checksums[original]

    def read(self, shard: int) -> Array | None:
        """Returns the rows of a shard, mapped from disk; None if it is not stored."""
        if shard not in self._mapped:
            if shard not in self._checksums:
                self.refresh()  # another process may have stored it
            if shard not in self._checksums:
                return None
            while self._mapped and len(self._mapped) >= min(MAX_MAPPED, MAX_MAPPED_BYTES // self.size(shard)):
                self._mapped.pop(next(iter(self._mapped)))
            offset, shape = len(self._header(shard)), self._shape_of(shard)
            self._mapped[shard] = np.memmap(self._path(shard), DTYPE, "r", offset, shape)
        return self._mapped[shard]

    def _hold(self) -> None:
        """Marks the folder as in use as long as this object lives."""
        descriptor = hold_in_use(self.folder / IN_USE)
        if descriptor >= 0:
            weakref.finalize(self, os.close, descriptor)

    def problems(self) -> dict[str, str]:
        """Returns what is wrong with stored shards, by the names of their files; nothing is changed."""
        checksums, damaged = self._read_index()
        found = {self._index.name: "damaged"} if damaged else {}
        with self._progress.task(f"checking {self.folder.name}", len(checksums)) as task:
            for shard, checksum in sorted(checksums.items()):
                problem = self._problem(shard, checksum)
                if problem:
                    found[self._path(shard).name] = problem
                task.advance()
        return found

    @property
    def stored(self) -> int:
        """The number of rows in the shards that the index lists; they are not checked."""
        return sum(len(self.rows(shard)) for shard in self._read_index()[0])

    @property
    def _identity(self) -> Path:
        return self.folder / IDENTITY

    @property
    def _index(self) -> Path:
        return self.folder / "index.jsonl"

    def _path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:06d}.npy"

    def _lock(self) -> AbstractContextManager[None]:
        return wait_for_lock(self.folder / "lock")

    def _shape_of(self, shard: int) -> tuple[int, ...]:
        return (len(self.rows(shard)), *self.shape[1:])

    def _header(self, shard: int) -> bytes:
        """The first bytes of the file of a shard: format, dtype and shape."""
        file = io.BytesIO()
        fields = {"descr": DTYPE.str, "fortran_order": False, "shape": self._shape_of(shard)}
        np.lib.format.write_array_header_1_0(file, fields)
        return file.getvalue()

    def _has_identity(self, identity: Any) -> bool:
        try:
            return bool(read_json(self._identity) == identity)
        except PolycovError:  # missing or damaged
            return False

    def _read_index(self) -> tuple[dict[int, int], bool]:
        """The checksums of the stored shards, and whether the index is damaged."""
        checksums: dict[int, int] = {}
        try:
            for row in read_json_lines(self._index):
                checksums[int(row["shard"])] = int(row["crc32"])
        except (PolycovError, KeyError, TypeError, ValueError, OverflowError):
            return checksums, True
        return checksums, False

    def _write_index(self, checksums: dict[int, int]) -> None:
        rows = [{"shard": shard, "crc32": checksum} for shard, checksum in sorted(checksums.items())]
        write_json_lines(self._index, rows)

    def _problem(self, shard: int, checksum: int) -> str:
        """What is wrong with a shard; "" if nothing is."""
        try:
            with open_to_read(self._path(shard)) as file:
                size = file.seek(0, io.SEEK_END)
                file.seek(0)
                header = self._header(shard)
                if file.read(len(header)) != header:
                    return "another dtype or shape"
                if size != self.size(shard):
                    return f"{size} bytes instead of {self.size(shard)}"
                actual = zlib.crc32(header)
                while block := file.read(1 << 22):
                    actual = zlib.crc32(block, actual)
        except PolycovError:
            return "it is missing, or not a file that can be read"
        except OSError as error:
            return error.strerror or type(error).__name__
        return "" if actual == checksum else "wrong checksum"

    def _drop(self, shards: set[int]) -> None:
        """Removes shards, first from the index, unless another process has replaced them in the meantime."""
        with self._lock():
            checksums, _ = self._read_index()
            problems = {shard: self._problem(shard, checksums[shard]) for shard in sorted(shards) if shard in checksums}
            problems = {shard: problem for shard, problem in problems.items() if problem}
            self._write_index({shard: checksums[shard] for shard in checksums if shard not in problems})
            for shard, problem in problems.items():
                self._report(self._path(shard), problem)
                self._path(shard).unlink(missing_ok=True)
                self._mapped.pop(shard, None)

    def _remove_unlisted(self, stored: set[int], problem: str) -> None:
        keep = {self._path(shard) for shard in stored}
        for path in self.folder.glob("shard-*.npy"):
            if path not in keep:
                self._report(path, problem)
                path.unlink(missing_ok=True)

    def _report(self, path: Path, problem: str) -> None:
        self._progress.message(f"{str(path)!r} is recomputed: {problem}.")

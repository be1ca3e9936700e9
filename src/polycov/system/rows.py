"""Rows of numbers, one for each image: in memory, or in a temporary file where they would not fit."""

import math
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from polycov.errors import PolycovError

BLOCK = 512  # rows that are read at a time


class DiskRows:
    """Rows (n, D) in float32 in a temporary file, read and written like a tensor: ``rows[a:b]``.

    Where the system allows it, the file has no name, and is gone with the object or the process, however that ends. It
    is read and written, not mapped: what is not asked for takes no memory.

    Args:
        shape: (n, D).
        folder: where the file is; default: the system's folder for temporary files.

    Raises:
        PolycovError: if the disk is too small.

    Example:
        >>> rows = DiskRows((4, 2))
        >>> rows[1:3] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> rows[2:3], rows[torch.tensor([2, 1])]
        (tensor([[3., 4.]]), tensor([[3., 4.],
                [1., 2.]]))
    """

    def __init__(self, shape: tuple[int, int], folder: Path | None = None) -> None:
        self.shape = shape
        needed, free = 4 * math.prod(shape), shutil.disk_usage(folder or tempfile.gettempdir()).free
        if needed > free:
            raise PolycovError(
                f"Features of {shape[1]} dimensions for {shape[0]} images take {needed / 1e9:.1f} GB, more than the "
                f"memory allowed, and {str(folder or tempfile.gettempdir())!r} has only {free / 1e9:.1f} GB free. Use "
                "more --memory or smaller --dims, or set POLYCOV_CACHE to a folder on another disk."
            )
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, it lives as long as this object
        weakref.finalize(self, self._file.close)
        self._file.truncate(needed)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        if isinstance(index, Tensor):
            rows = [self._read(int(i), int(i) + 1) for i in index.flatten()]
            return torch.cat(rows).reshape(*index.shape, self.shape[1]) if rows else torch.empty(0, self.shape[1])
        begin, end, _ = index.indices(len(self))
        return self._read(begin, max(begin, end))

    def __setitem__(self, index: slice, values: Tensor) -> None:
        begin, end, _ = index.indices(len(self))
        if values.shape != (end - begin, self.shape[1]):
            raise ValueError(f"expected {(end - begin, self.shape[1])}, got {tuple(values.shape)}")
        self._file.seek(4 * begin * self.shape[1])
        self._file.write(values.detach().float().contiguous().cpu().numpy().data)

    def _read(self, begin: int, end: int) -> Tensor:
        result = torch.empty(end - begin, self.shape[1])
        self._file.seek(4 * begin * self.shape[1])
        view = result.numpy().reshape(-1).view("uint8").data
        if self._file.readinto(view) != view.nbytes:
            raise OSError("a temporary file of features was cut short")
        return result


Rows = Tensor | DiskRows


def read_blocks(parts: Iterable[Rows], size: int = BLOCK) -> Iterator[Tensor]:
    """Yields the rows of several parts in order, at most ``size`` at a time; no block spans two parts."""
    for part in parts:
        for begin in range(0, len(part), size):
            yield part[begin : begin + size]


class Batches:
    """Tensors that are made anew whenever they are read, or made once and kept.

    Args:
        make: makes them.
        keep: whether they are kept, because they fit into memory.

    Example:
        >>> batches = Batches(lambda: (torch.full((2,), x) for x in range(3)), keep=False)
        >>> [x.tolist() for x in batches] == [x.tolist() for x in batches]
        True
    """

    def __init__(self, make: Callable[[], Iterator[Tensor]], *, keep: bool) -> None:
        self._make = make
        self._kept = list(make()) if keep else None

    def __iter__(self) -> Iterator[Tensor]:
        return self._make() if self._kept is None else iter(self._kept)

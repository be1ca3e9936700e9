"""The images in a Parquet file, here or in an object store, in the layout of Hugging Face: bytes in a column."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from polycov.data.addresses import open_address
from polycov.errors import require_module

MAX_GROUP = 2**31  # bytes of the images in a row group, which is read as a whole
USUAL = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes")  # names of columns of images


@dataclass
class RowGroup:
    """Consecutive rows of a file in memory.

    Attributes:
        address: of the file.
        first: the first row.
        images: the column of images.
    """

    address: str
    first: int
    images: Any

    def has(self, address: str, row: int) -> bool:
        """Whether a row is among these."""
        return address == self.address and self.first <= row < self.first + len(self.images)

    def read(self, row: int) -> bytes:
        """Returns the bytes of an image.

        Raises:
            ValueError: if there are none: a row may name a file instead, and a file may lie anywhere.
        """
        value = self.images[row - self.first].as_py()
        content = value["bytes"] if isinstance(value, dict) else value
        if content is None:
            raise ValueError("its row holds no bytes")
        return bytes(content)


def count_rows(address: str) -> int:
    """Returns the number of rows of a Parquet file with images.

    Raises:
        ValueError: if it is not a Parquet file, or has no column of images.
        OSError: if it cannot be read.
    """
    with _opened(address) as file:
        _column(file.schema_arrow)
        return int(file.metadata.num_rows)


def read_row_group(address: str, row: int) -> RowGroup:
    """Returns the rows that are stored together with a row.

    Raises:
        ValueError: if the file is damaged or has changed, or the rows are too many to be read as a whole.
        OSError: if the file cannot be read.
    """
    with _opened(address) as file:
        column = _column(file.schema_arrow)
        for group, (first, count) in enumerate(_groups(file.metadata)):
            if first <= row < first + count:
                size = _size(file.metadata.row_group(group), column)
                if size > MAX_GROUP:
                    raise ValueError(
                        f"its row group has {size / 2**30:.1f} GiB of images; at most {MAX_GROUP / 2**30:.0f} are read"
                    )
                table = file.read_row_group(group, columns=[column], use_threads=False)
                return RowGroup(address, first, table.column(0))
    raise ValueError("the file was changed after its images were listed")


def _groups(metadata: Any) -> Iterator[tuple[int, int]]:
    """The first row and the number of rows of each row group."""
    first = 0
    for group in range(metadata.num_row_groups):
        count = metadata.row_group(group).num_rows
        yield first, count
        first += count


def _size(group: Any, column: str) -> int:
    columns = (group.column(i) for i in range(group.num_columns))
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema == column)


def _column(schema: Any) -> str:
    """The path of the column of images: of bytes, or of structures that have bytes."""
    from pyarrow import types

    found = {}
    for field in schema:
        if types.is_binary(field.type) or types.is_large_binary(field.type):
            found[field.name] = field.name
        elif types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            found[field.name] = f"{field.name}.bytes"
    if not found:
        raise ValueError(f"it has no column of images, but {', '.join(schema.names)}")
    usual = next((name for name in USUAL if name in found), None)
    if usual is None and len(found) > 1:
        raise ValueError(f"its images may be in {' or '.join(found)}: call the column of images 'image'")
    return found[usual] if usual else next(iter(found.values()))


@contextmanager
def _opened(address: str) -> Iterator[Any]:
    sentence = f"{address!r} needs pyarrow. Install it with: pip install 'polycov[data]'"
    parquet = require_module("pyarrow.parquet", sentence)
    with open_address(address) as opened, parquet.ParquetFile(opened) as file:
        yield file

"""Images from anywhere: files, members of tars and rows of Parquet files, here or in object stores."""

import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polycov.data.addresses import MAX_BYTES, has_extension, local_path, read_address, stamp_of, walk_store
from polycov.data.image_files import Content, UnreadableImageError
from polycov.data.parquet_rows import RowGroup, count_rows, read_row_group
from polycov.data.tar_members import iterate_members, read_member
from polycov.data.walk import ARCHIVES, PARQUET, images_or_archives, is_image, iterate_images
from polycov.errors import MissingDependencyError, PolycovError, first_line

Item = str | tuple[str, str] | tuple[str, int] | tuple[str, str, int, int]
"""Where an image is: a file; a damaged tar or Parquet file and what is wrong with it; a Parquet file and a row; or a
tar, the name of a member, its offset and its size. As JSON it is the same, with lists."""


def iterate_items(paths: Iterable[str | Path]) -> Iterator[Item]:
    """Yields where the images are, one by one, without a list of all of them in memory.

    Args:
        paths: images, tars, Parquet files, and folders of any of them; or their URLs, which fsspec reads. Tars and
            Parquet files in folders count where a folder has no images of its own.

    Raises:
        PolycovError: if a path does not exist, or is a compressed tar.
        OSError: if a folder cannot be read, or a store cannot be reached.
    """
    for path in paths:
        address = str(path)
        local = local_path(address)
        files = (
            walk_store(address, images_or_archives) if local is None else iterate_images([local], images_or_archives)
        )
        for file in files:
            if has_extension(file, (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")):
                raise PolycovError(f"{file!r} is a compressed tar. Expand it to a .tar: images are read in place.")
            yield from _in_archive(file) if has_extension(file, ARCHIVES) else (file,)


def _in_archive(file: str) -> Iterator[Item]:
    """The images in a tar or Parquet file; what cannot be listed is one image that cannot be read."""
    try:
        if has_extension(file, (PARQUET,)):
            yield from ((file, row) for row in range(count_rows(file)))
        else:
            yield from ((file, *member) for member in iterate_members(file) if is_image(member[0]))
    except (MissingDependencyError, ConnectionError):
        raise
    # A damaged file makes its reader raise many kinds.
    except (tarfile.TarError, OSError, ValueError, EOFError, OverflowError, RecursionError) as error:
        yield file, f"it is damaged: {first_line(error)}"


def item_name(item: Item) -> str:
    """Returns the name of an image: the file, with a member or row after it.

    Example:
        >>> item_name("a.jpg"), item_name(("b.tar", "c.jpg", 512, 9)), item_name(("d.parquet", 7))
        ('a.jpg', 'b.tar/c.jpg', 'd.parquet/00000007')
    """
    if isinstance(item, str):
        return item
    file, place = item[0], item[1]
    if len(item) == 4:
        return f"{file}/{place}"
    return file if isinstance(place, str) else f"{file}/{place:08d}"


def last_modified(item: Item) -> float:
    """Returns when the file of an image was last modified, in seconds; 0 if it is elsewhere, or gone."""
    path = local_path(item if isinstance(item, str) else item[0])
    try:
        return 0.0 if path is None else path.stat().st_mtime
    except OSError:
        return 0.0


def item_from_json(value: Any) -> Item:
    """Returns an item that was stored as JSON.

    Raises:
        ValueError: if it is not one.
    """
    if isinstance(value, str):
        return value
    kinds = [type(part) for part in value] if isinstance(value, list) else []
    if kinds not in ([str, str], [str, int], [str, str, int, int]):
        raise ValueError(f"expected the place of an image, got {str(value)[:40]!r}")
    item: Item = tuple(value)
    return item


@dataclass
class Anywhere:
    """A source of images by the items of `iterate_items`. It keeps one row group of a Parquet file in memory."""

    rows: RowGroup | None = None
    always_readable = False

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": None}  # another process reads its own

    def open(self, item: Item) -> Content:
        """The path of a file here, else the bytes of an image.

        Raises:
            UnreadableImageError: if it cannot be read.
            ConnectionError: if it cannot be reached, which says nothing about the image.
        """
        if isinstance(item, str):
            path = local_path(item)
            if path is not None:
                return path
        try:
            return self._read(item)
        except (MissingDependencyError, ConnectionError):
            raise
        except (OSError, ValueError, MemoryError) as error:
            reason = "it is missing" if isinstance(error, FileNotFoundError) else str(error) or type(error).__name__
            raise UnreadableImageError(item_name(item), reason) from error

    def _read(self, item: Item) -> bytes:
        if isinstance(item, str):
            content = read_address(item, 0, MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES} bytes")
            return content
        if len(item) == 4:
            return read_member(item[0], item[1:])
        if isinstance(item[1], str):
            raise ValueError(item[1])
        if self.rows is None or not self.rows.has(item[0], item[1]):
            self.rows = None  # not two at a time
            self.rows = read_row_group(item[0], item[1])
        return self.rows.read(item[1])

    def name(self, item: Item) -> str:
        """The file, with a member or row after it."""
        return item_name(item)

    def stamp(self, item: Item) -> str:
        """That of the file."""
        return stamp_of(item if isinstance(item, str) else item[0])

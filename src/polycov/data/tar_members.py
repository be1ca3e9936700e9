"""The files in a tar, here or in an object store: listed once, then read in place at their offsets."""

import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from polycov.data.addresses import MAX_BYTES, open_address, read_address

BLOCK = tarfile.BLOCKSIZE
LONGEST_HEADER = 2**20  # bytes; names and notes of a member
Member = tuple[str, int, int]  # name, offset, size


def iterate_members(address: str) -> Iterator[Member]:
    """Yields the regular files in a tar, without a list of them in memory.

    Raises:
        tarfile.TarError: if it is damaged; what comes before was yielded.
        OSError: if it cannot be read.
    """
    end = -1
    with open_address(address) as file, tarfile.open(fileobj=_Headers(file), mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # else it keeps all
            if tar.offset <= end or member.size < 0:  # a size below zero would lead back
                raise tarfile.ReadError("a member ends before it begins")
            end = tar.offset
            if member.isfile() and not member.issparse():
                yield member.name, member.offset_data, member.size
        file.seek(tar.offset)
        if any(file.read(BLOCK)):  # tarfile takes any damage for the end
            raise tarfile.ReadError(f"there is no valid header at byte {tar.offset}")


def read_member(address: str, member: Member) -> bytes:
    """Returns the bytes of a member, if it still is where it was listed.

    Raises:
        ValueError: if it is too large, the tar ends before it does, or the tar was changed.
        OSError: if the tar cannot be read.
    """
    _, offset, size = member
    if size > MAX_BYTES:
        raise ValueError(f"it has {size} bytes; at most {MAX_BYTES} are read")
    content = read_address(address, offset - BLOCK, BLOCK + size)
    if len(content) != BLOCK + size:
        raise ValueError("the tar ends before it does")
    try:
        header = tarfile.TarInfo.frombuf(content[:BLOCK], "utf-8", "surrogateescape")
    except tarfile.TarError as error:
        raise ValueError("the tar was changed after its images were listed") from error
    if header.size not in (size, 0):  # 0: a size in a longer header
        raise ValueError("the tar was changed after its images were listed")
    return content[BLOCK:]


class _Headers:
    """A file of which only headers are read: a hostile one could claim the whole tar."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

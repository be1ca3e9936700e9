"""How much memory features and matrices may take, and where they go if they need more."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from polycov.errors import PolycovError
from polycov.system.environment import free_memory
from polycov.system.rows import BLOCK, DiskRows, Rows

UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
TOKENS, FEATURES, MATRICES = 0.3, 0.2, 0.5  # shares of local features, pooled features, and what is fitted to them
LEAST = 2**28  # by default
COPIES = 4  # of a matrix while it is factorised


@dataclass(frozen=True)
class Memory:
    """The memory that features and matrices may take. Python, torch and the network come on top of it.

    Attributes:
        limit: bytes.
        folder: for temporary files of features that do not fit; default: the system's folder for them.
    """

    limit: int
    folder: Path | None = None

    @classmethod
    def of(cls, size: str | None, folder: Path | None = None) -> "Memory":
        """Returns a size such as "4GB"; None: half of what is free."""
        return cls(max(free_memory() // 2, LEAST) if size is None else parse_size(size), folder)

    @property
    def tokens(self) -> int:
        """The bytes of local features that may be kept; others are read again whenever they are needed."""
        return int(TOKENS * self.limit)

    def fits(self, count: int, width: int) -> bool:
        """Returns whether features (count, width) in float32 may be kept in memory."""
        return 4 * count * width <= FEATURES * self.limit

    def rows(self, count: int, width: int, of: int | None = None) -> Rows:
        """Returns room for features (count, width): in memory if they fit, else in a temporary file.

        Args:
            count: their number.
            width: their dimension.
            of: the number of features kept at the same time, these included; default: these alone.

        Raises:
            PolycovError: if the disk is too small.
        """
        if self.fits(count if of is None else of, width):
            return torch.empty(count, width)
        return DiskRows((count, width), self.folder)

    def require_block(self, width: int) -> None:
        """Refuses features so wide that not even one block of them fits.

        Raises:
            PolycovError: if they are too wide.
        """
        self._require(4 * BLOCK * width, f"{BLOCK} features of {width} dimensions take", "smaller --dims")

    def require_matrix(self, side: int, what: str) -> None:
        """Refuses a square matrix that does not fit while it is factorised.

        Args:
            side: its rows.
            what: what needs it, as the subject of a sentence.

        Raises:
            PolycovError: if it is too large.
        """
        needed = 8 * COPIES * side**2
        self._require(needed, f"{what} needs matrices of {side} × {side} numbers,", "fewer dimensions")

    def _require(self, needed: int, what: str, instead: str) -> None:
        if needed > MATRICES * self.limit:
            raise PolycovError(
                f"{what} {format_size(needed)}, but only {format_size(self.limit)} of memory may be used. Use --memory "
                f"{format_size(int(needed / MATRICES) + 2**20)} or more, or {instead}."
            )

    def part(self, processes: int) -> "Memory":
        """Returns the share of one of several processes."""
        return Memory(self.limit // processes, self.folder)


UNBOUNDED = Memory(2**62)


def parse_size(text: str) -> int:
    """Returns a size in bytes.

    Raises:
        PolycovError: if it is not a size.

    Example:
        >>> parse_size("4GB"), parse_size("1.5 m"), parse_size("100")
        (4294967296, 1572864, 100)
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?)i?b?", text.strip(), re.ASCII | re.IGNORECASE)
    size = int(float(match[1]) * UNITS[match[2].lower()]) if match else 0
    if size < 1:
        raise PolycovError(f"Expected a memory size such as 4GB or 500MB, got {text!r}.")
    return size


def format_size(count: int) -> str:
    """Returns a size as `parse_size` takes it, rounded up.

    Example:
        >>> format_size(2**31), format_size(3 * 2**20), format_size(1)
        ('2.0GB', '3MB', '1MB')
    """
    return f"{-(-count * 10 // 2**30) / 10}GB" if count >= 2**30 else f"{-(-count // 2**20)}MB"

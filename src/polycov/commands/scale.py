"""The parts of ``polycov bench`` about very many images."""

from collections.abc import Sequence

from polycov.bench.tables import Row
from polycov.commands.terminal import Terminal
from polycov.system.tables import Table


def load(terminal: Terminal, share: float, images: int, layouts: Sequence[str]) -> list[Row]:
    """Measures the machinery under load, and shows the table."""
    from polycov.bench.load import load  # needs the extra train

    rows = list(load(share, images, layouts))  # type: ignore[arg-type]
    cells = [
        [cell if isinstance(cell, str) or cell is None else f"{cell:,.0f}" for cell in row.values()] for row in rows
    ]
    columns = ("what", "images", "seconds", "per second", "at the end", "MiB", "at the end")
    terminal.table(Table(columns, cells, "load: rate and peak of memory, in the first tenth and at the end"))
    return rows

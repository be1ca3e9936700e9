"""Tables as plain data: made by the library; shown in a terminal, a notebook or a page, or written to a file.

Not a pandas DataFrame, which would be a heavy dependency for a few cells; `Table.to_pandas` makes one.
"""

import csv
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polycov.errors import PolycovError, require_module
from polycov.system.files import write_file
from polycov.system.text import spreadsheet_safe, valid_utf8

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns.

    Attributes:
        columns: the names of the columns.
        rows: one cell per column; None for an empty cell.
        title: title of the table.

    Raises:
        PolycovError: if a row has more or fewer cells than there are columns.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise PolycovError(f"Expected rows of {len(self.columns)} cells, got {len(row)}: {list(row)}.")

    def to_csv(self, path: Path) -> None:
        """Writes the table as CSV, floats with six digits; no cell is a formula."""

        def fill(temporary: Path) -> None:
            with temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(map(_csv_cell, self.columns))
                writer.writerows(map(_csv_cell, row) for row in self.rows)

        write_file(path, fill)

    def to_pandas(self) -> Any:
        """Returns the table as a pandas DataFrame.

        Raises:
            MissingDependencyError: if pandas is not installed.
        """
        pandas = require_module("pandas", "A DataFrame needs pandas. Install it with: pip install pandas")
        return pandas.DataFrame([list(row) for row in self.rows], columns=list(self.columns))

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        head = "".join(f"<th>{_escape(name)}</th>" for name in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        caption = f"<caption>{_escape(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _csv_cell(cell: Cell) -> Cell:
    if isinstance(cell, float):
        return f"{cell:.6g}"
    return spreadsheet_safe(cell) if isinstance(cell, str) else cell


def _escape(cell: Cell) -> str:
    """A cell as HTML."""
    if cell is None:
        return ""
    text = f"{cell:.4g}" if isinstance(cell, float) else str(cell)
    return html.escape(valid_utf8(text))

"""Tables as plain data: made by the library, shown by a terminal, a notebook, a page or a file."""

import csv
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polycov.errors import MissingDependencyError
from polycov.system.files import write_file

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns.

    Attributes:
        columns: their names.
        rows: one cell per column; None where there is nothing.
        title: of the table.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""

    def to_csv(self, path: Path) -> None:
        """Writes the table as CSV; floats with six digits."""

        def fill(temporary: Path) -> None:
            with temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(self.columns)
                writer.writerows([f"{c:.6g}" if isinstance(c, float) else c for c in row] for row in self.rows)

        write_file(path, fill)

    def to_pandas(self) -> Any:
        """Returns the table as a pandas DataFrame.

        Raises:
            MissingDependencyError: if pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingDependencyError("A DataFrame needs pandas. Install it with: pip install pandas") from error
        return pandas.DataFrame([list(row) for row in self.rows], columns=list(self.columns))

    def _repr_html_(self) -> str:
        """For notebooks."""
        head = "".join(f"<th>{html.escape(str(name))}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_text(cell))}</td>" for cell in row) + "</tr>" for row in self.rows
        )
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)

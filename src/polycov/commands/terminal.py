"""The terminal: messages, progress bars and tables, or plain lines where there is no terminal."""

import os
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table as RichTable
from rich.text import Text

from polycov.progress import LogProgress, Progress, Task
from polycov.system.tables import Cell, Table
from polycov.system.text import printable


class Terminal:
    """Where a command writes.

    Attributes:
        console: console of rich; wide where there is no terminal, so that tables are not cut.
        progress: for library calls: bars on a terminal, else a plain line every half minute.
    """

    def __init__(self, quiet: bool = False) -> None:
        quiet = quiet or int(os.environ.get("LOCAL_RANK", "0")) > 0  # one process of a launcher speaks
        console = Console(quiet=quiet, highlight=False)
        self.console = console if console.is_terminal else Console(quiet=quiet, width=140, highlight=False)
        self.progress: Progress = TerminalProgress(self.console) if console.is_terminal else LogProgress(self.write)

    def write(self, text: str) -> None:
        """Writes a line, as it is."""
        self.console.print(printable(text), markup=False, soft_wrap=True)

    def table(self, table: Table, *, sections: bool = False) -> None:
        """Writes a table; with ``sections`` a line wherever the first column changes."""
        self.console.print(as_rich(table, sections))


def as_rich(table: Table, sections: bool = False) -> RichTable:
    """Returns a table for a terminal: numbers to the right, long names folded rather than cut."""
    result = RichTable(title=Text(printable(table.title)) if table.title else None)
    for i, name in enumerate(table.columns):
        numeric = i > 0 and all(_is_number(row[i]) for row in table.rows)
        result.add_column(Text(printable(name)), justify="right" if numeric else "left", overflow="fold")
    previous: Cell = None
    for row in table.rows:
        if sections and previous not in (None, row[0]):
            result.add_section()
        previous = row[0]
        result.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in row))
    return result


def _is_number(cell: Cell) -> bool:
    return cell is None or isinstance(cell, int | float) or not cell or cell[0] in "0123456789+-−–"


class TerminalTask(Task):
    """A task as a bar, with a table of intermediate results above it if there is one."""

    def __init__(self, description: str, total: int, display: "TerminalProgress") -> None:
        super().__init__(description, total)
        self._display = display
        self._status = ""
        self._bar = display.bars.add_task(description, total=total, status="")

    def __enter__(self) -> Self:
        self._display.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._display.bars.remove_task(self._bar)
        self._display.close()

    def update(self, completed: int, status: str = "") -> None:
        super().update(completed, status)
        self._status = status or self._status
        self._display.bars.update(self._bar, completed=completed, status=self._status)

    def show(self, table: Table) -> None:
        self._display.show(table)


class TerminalProgress(Progress):
    """Messages above, bars below."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self.bars = Bars(
            TextColumn("{task.description}"), *columns, TextColumn("{task.fields[status]}"), console=console
        )
        self._live: Live | None = None
        self._tasks = 0

    def message(self, text: str) -> None:
        self.console.print(printable(text), markup=False, soft_wrap=True)

    def task(self, description: str, total: int) -> Task:
        return TerminalTask(description, total, self)

    def open(self) -> None:
        """Shows the bars, from the first task on."""
        self._tasks += 1
        if self._live is None:
            self._live = Live(self.bars, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()

    def close(self) -> None:
        """Removes the bars after the last task."""
        self._tasks -= 1
        if self._tasks == 0 and self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, table: Table) -> None:
        """Shows a table above the bars."""
        if self._live is not None:
            self._live.update(Group(as_rich(table), self.bars))

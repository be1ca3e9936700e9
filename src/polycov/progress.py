"""How library code reports what it is doing: one small interface that the caller may pass.

The library never prints. `Progress` itself is silent; `LogProgress` writes plain lines, for a log file, a notebook or a
job without a terminal; the command line has a third, with bars, in `polycov.commands.terminal`.
"""

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from polycov.system.tables import Table


class Task:
    """A piece of work of known length, as a context manager. This one shows nothing.

    Attributes:
        description: what is being done, such as "extracting features".
        total: the number of steps.
        completed: how many of them are done.
    """

    def __init__(self, description: str, total: int) -> None:
        self.description, self.total, self.completed = description, total, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def advance(self, steps: int = 1, status: str = "") -> None:
        """Reports that ``steps`` more are done; ``status`` is a short remark, such as the loss."""
        self.update(self.completed + steps, status)

    def update(self, completed: int, status: str = "") -> None:
        """Reports how many steps are done in all."""
        self.completed = completed

    def show(self, table: Table) -> None:
        """Offers a table of intermediate results, for those who can show one."""


class Progress:
    """Receives messages and tasks from library code. This one is silent; subclass it to show them.

    Example:
        >>> with Progress().task("counting", 3) as task:
        ...     for _ in range(3):
        ...         task.advance()
        >>> task.completed
        3
    """

    def message(self, text: str) -> None:
        """Receives a sentence for the user: what was found, decided, skipped or written."""

    def task(self, description: str, total: int) -> Task:
        """Begins a task; use it in a ``with`` statement."""
        return Task(description, total)


SILENT = Progress()


class LogTask(Task):
    """A task that writes a line every so often, and one at its end."""

    def __init__(self, description: str, total: int, write: Callable[[str], object], seconds: float) -> None:
        super().__init__(description, total)
        self._write, self._seconds = write, seconds
        self._began = self._last = time.monotonic()
        self._done_before: int | None = None
        self._status = ""

    def update(self, completed: int, status: str = "") -> None:
        """Writes a line if the last one was long enough ago."""
        if self._done_before is None:
            self._done_before = min(completed, self.completed)
        super().update(completed, status)
        self._status = status or self._status
        if time.monotonic() - self._last >= self._seconds and completed < self.total:
            self._last = time.monotonic()
            self._write(self._line())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if time.monotonic() - self._began >= self._seconds:  # short work is not worth a line
            self._write(self._line())

    def _line(self) -> str:
        elapsed = time.monotonic() - self._began
        done, left = self.completed - (self._done_before or 0), self.total - self.completed
        rest = f", {duration(elapsed * left / done)} left" if done > 0 and left > 0 else ""
        status = f", {self._status}" if self._status else ""
        return f"{self.description}: {self.completed} of {self.total} after {duration(elapsed)}{rest}{status}"


class LogProgress(Progress):
    """Writes messages, and a line per task every ``seconds``: for logs, notebooks and jobs without a terminal.

    Args:
        write: receives each line; by default the logger "polycov", at level INFO.
        seconds: between two lines of one task.

    Example:
        >>> lines = []
        >>> LogProgress(lines.append).message("3 images skipped")
        >>> lines
        ['3 images skipped']
    """

    def __init__(self, write: Callable[[str], object] | None = None, seconds: float = 30.0) -> None:
        self._write = write or logging.getLogger("polycov").info
        self._seconds = seconds

    def message(self, text: str) -> None:
        """Writes a message."""
        self._write(text)

    def task(self, description: str, total: int) -> Task:
        """Begins a task that writes lines."""
        return LogTask(description, total, self._write, self._seconds)


def duration(seconds: float) -> str:
    """Returns a duration as people say it.

    Example:
        >>> duration(50), duration(150), duration(9000)
        ('50 s', '2.5 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"

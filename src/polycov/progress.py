"""How library code reports what it is doing: one small interface that the caller may pass.

The library never prints, so it does not use tqdm, which does. `Progress` is silent; `LogProgress` writes plain lines
for a log file, a notebook or a job without a terminal; the command line has a third with progress bars, in
`polycov.commands.terminal`.
"""

import logging
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Self

from polycov.system.tables import Table


class Task:
    """A task of known length, as a context manager. This one shows nothing.

    Attributes:
        description: what is being done, such as "extracting features".
        total: the number of steps.
        completed: the number of steps done.
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
        """Reports that ``steps`` more are done. ``status`` is a short remark, such as the loss."""
        self.update(self.completed + steps, status)

    def update(self, completed: int, status: str = "") -> None:
        """Reports the number of steps done, including those of an earlier, interrupted run."""
        self.completed = completed

    def show(self, table: Table) -> None:
        """Offers a table of intermediate results."""


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
        """Receives a sentence for the user: what was read, decided, skipped or written."""

    def warn(self, text: str) -> None:
        """Receives a note on what differs from what the user asked for; `SILENT`, the default, makes it a warning."""
        self.message(f"note: {text}")

    def task(self, description: str, total: int) -> Task:
        """Starts a task; use it in a ``with`` statement."""
        return Task(description, total)

    def __reduce__(self) -> tuple[type["Progress"], tuple[()]]:
        """Makes it silent when it is sent to another process: only one process reports."""
        return Progress, ()


class _Silent(Progress):
    """The default, silent but for warnings."""

    def warn(self, text: str) -> None:
        warnings.warn(text, UserWarning, stacklevel=2)


SILENT = _Silent()


class TasksOnly(Progress):
    """Passes on tasks and drops messages, for a step of longer work that would repeat them."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def task(self, description: str, total: int) -> Task:
        """Begins a task of the progress behind this one."""
        return self._progress.task(description, total)


class LogTask(Task):
    """A task that writes a line every ``seconds``, and one at its end if it took that long."""

    def __init__(self, description: str, total: int, write: Callable[[str], object], seconds: float) -> None:
        super().__init__(description, total)
        self._write, self._seconds = write, seconds
        self._began = self._last_line = time.monotonic()
        self._baseline: tuple[float, int] | None = None  # when, and with how many steps done, this run began
        self._status = ""

    def advance(self, steps: int = 1, status: str = "") -> None:
        """Writes a line if the last one is old enough."""
        self._baseline = self._baseline or (self._began, self.completed)
        super().advance(steps, status)

    def update(self, completed: int, status: str = "") -> None:
        """Writes a line if the last one is old enough."""
        now = time.monotonic()
        self._baseline = self._baseline or (now, completed)
        super().update(completed, status)
        self._status = status or self._status
        if now - self._last_line >= self._seconds and completed < self.total:
            self._last_line = now
            self._write(self._line(now))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        now = time.monotonic()
        if now - self._began >= self._seconds:
            self._write(self._line(now))

    def _line(self, now: float) -> str:
        time_left = self._time_left(now)
        status = f", {self._status}" if self._status else ""
        progress = f"{self.completed} of {self.total} after {duration(now - self._began)}"
        return f"{self.description}: {progress}{time_left}{status}"

    def _time_left(self, now: float) -> str:
        if self._baseline is None:
            return ""
        seconds, steps = now - self._baseline[0], self.completed - self._baseline[1]
        steps_left = self.total - self.completed
        return f", {duration(seconds * steps_left / steps)} left" if steps > 0 and steps_left > 0 else ""


class LogProgress(Progress):
    """Writes messages, and one line per task every ``seconds``: for logs, notebooks and jobs without a terminal.

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
        """Starts a task that writes lines."""
        return LogTask(description, total, self._write, self._seconds)


def duration(seconds: float) -> str:
    """Returns a duration in seconds, minutes or hours, as suits its length.

    Example:
        >>> duration(50), duration(150), duration(9000)
        ('50 s', '2.5 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"

"""Progress on the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def make_console(quiet: bool = False) -> Console:
    """Returns a console: silent if ``quiet``, and wide where there is no terminal, so that tables are not cut."""
    console = Console(quiet=quiet, highlight=False)
    return console if console.is_terminal else Console(quiet=quiet, width=140, highlight=False)


def make_progress(console: Console, *more: str) -> Progress:
    """Returns a progress bar with time spent and left; ``more`` are templates of further columns."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    return Progress(*columns, TimeRemainingColumn(), *map(TextColumn, more), console=console, transient=True)


@contextmanager
def ticking(console: Console, description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar while a block runs; what it yields is called with the number of steps done."""
    with make_progress(console) as progress:
        task = progress.add_task(description, total=total)
        yield lambda steps: progress.advance(task, steps)

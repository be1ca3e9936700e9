import io
from contextlib import redirect_stdout

import pytest
from rich.console import Console

from polycov.commands.main import main
from polycov.commands.terminal import Terminal, TerminalProgress, as_rich
from polycov.progress import LogProgress
from polycov.system.tables import Table


def terminal_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_there_are_plain_lines() -> None:
    terminal = Terminal()
    assert isinstance(terminal.progress, LogProgress)
    assert terminal.console.width == 140


def test_a_task_is_a_bar_with_messages_above_and_a_table() -> None:
    console = terminal_console()
    progress = TerminalProgress(console)
    with progress.task("counting", 3) as outer, progress.task("inner", 2) as inner:
        outer.advance(2, "going well")
        inner.advance()
        outer.show(Table(("method", "own size"), [("average", "57 %")], "so far"))
        progress.message("[red]as it is[/red]")
        assert (outer.completed, inner.completed) == (2, 1)
    out = text_of(console)
    assert "counting" in out
    assert "going well" in out
    assert "average" in out
    assert "[red]as it is[/red]" in out
    with progress.task("again", 1):
        pass  # a second display can be opened


def test_numbers_are_right_aligned_and_markup_is_text() -> None:
    console = terminal_console()
    console.print(as_rich(Table(("name", "value"), [("[bold]x", 1.5), ("y", None)], "t"), sections=True))
    assert "[bold]x" in text_of(console)
    assert [column.justify for column in as_rich(Table(("a", "b", "c"), [("x", "1 %", "y")])).columns] == [
        "left",
        "right",
        "left",
    ]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_characters_that_cannot_be_shown_do_not_end_a_command(encoding: str) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with redirect_stdout(output):
        main(["list"])
    output.seek(0)
    assert "?" in output.read()

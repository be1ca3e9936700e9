"""``polycov compare``."""

from pathlib import Path

from polycov.commands.parsing import parse, value_of
from polycov.commands.terminal import Terminal
from polycov.comparing.compare import compare
from polycov.comparing.comparison import Comparison
from polycov.comparing.options import CompareOptions


def run(arguments: list[str]) -> None:
    """Compares, shows the result and writes the report."""
    recipe = value_of(arguments, "--recipe")
    default = CompareOptions().with_recipe(Path(recipe)) if recipe is not None else CompareOptions()
    options = parse(
        CompareOptions, "compare", arguments, positional={"data": "DATA"}, lists=("methods", "dims"), default=default
    )
    terminal = Terminal()
    comparison = compare(options, progress=terminal.progress)
    if not terminal.console.quiet:
        show(comparison, terminal)  # before anything is written, in case the disk is full
        terminal.write(f"page: {comparison.report()}")


def show(comparison: Comparison, terminal: Terminal) -> None:
    """Shows the table of a comparison, its recommendation, and what storing features costs."""
    terminal.table(comparison.table(), sections=True)
    for words in comparison.words():
        terminal.write(words)

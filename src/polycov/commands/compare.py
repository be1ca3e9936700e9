"""``polycov compare``."""

from dataclasses import dataclass
from pathlib import Path

from polycov.commands.parsing import narrowed, parse, value_of
from polycov.commands.terminal import Terminal
from polycov.comparing.compare import compare
from polycov.comparing.comparison import Comparison
from polycov.comparing.dry_run import plan_comparison
from polycov.comparing.launcher import launcher_rank
from polycov.comparing.options import CompareOptions


@dataclass(frozen=True)
class Compare(CompareOptions):
    """Compare pooling methods on your images, with error bars: which to use, and at what size.

    Run the same command again to resume after an interruption. Several processes share the work (--jobs), or several
    machines (--engine ray).
    """

    dry_run: bool = False
    """Only say what would be done: settings, images, hours on this machine (from a measured step) and disk."""


def run(arguments: list[str]) -> None:
    """Compares, shows the result and writes the report."""
    recipe = value_of(arguments, "--recipe")
    default = Compare().with_recipe(Path(recipe)) if recipe is not None else Compare()
    options = parse(
        Compare, "compare", arguments, positional={"data": "[DATA]"}, lists=("methods", "dims"), default=default
    )
    terminal = Terminal()
    if options.dry_run:
        for line in plan_comparison(options, terminal.progress).words():
            terminal.write(line)
        return
    if launcher_rank() > 0:
        return  # the first process of a launcher does it all, with helper processes in place of the others
    comparison = compare(narrowed(options, CompareOptions), progress=terminal.progress)
    show(comparison, terminal)  # before anything is written, in case the disk is full
    terminal.write(f"page: {comparison.report()}")
    if comparison.next_command:
        terminal.write(f"next: {comparison.next_command}")


def show(comparison: Comparison, terminal: Terminal) -> None:
    """Shows the table of a comparison, its recommendation, and what storing features costs."""
    terminal.table(comparison.table(), sections=True)
    for words in comparison.words():
        terminal.write(words)

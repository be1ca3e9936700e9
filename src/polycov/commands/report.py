"""``polycov report``."""

from dataclasses import dataclass
from pathlib import Path

from polycov.commands.compare import show
from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.comparing.comparison import load_comparison, report
from polycov.errors import PolycovError


@dataclass(frozen=True)
class Report:
    """Write the page, figures and tables of comparisons again."""

    comparisons: tuple[Path, ...] = ()
    """Folders of comparisons; several make one page."""
    out: Path | None = None
    """Folder for report.html; default: the first of them."""


def run(arguments: list[str]) -> None:
    """Writes the report."""
    options = parse(Report, "report", arguments, positional={"comparisons": "COMPARISON…"})
    if not options.comparisons:
        raise PolycovError("Expected folders of comparisons.")
    terminal = Terminal()
    comparisons = [load_comparison(folder) for folder in options.comparisons]
    for comparison in comparisons:
        show(comparison, terminal)
    terminal.write(f"page: {report(comparisons, options.out)}")

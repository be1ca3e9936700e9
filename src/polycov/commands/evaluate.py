"""``polycov evaluate``."""

from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.inference.evaluate import EvaluateOptions, evaluate


def run(arguments: list[str]) -> None:
    """Evaluates a run, and shows the result."""
    options = parse(EvaluateOptions, "evaluate", arguments, positional={"run": "RUN"})
    terminal = Terminal()
    evaluation = evaluate(options, progress=terminal.progress)
    for note in evaluation.notes:
        terminal.write(f"note: {note}")
    terminal.write(str(evaluation))
    terminal.table(evaluation.hardest_classes())
    if evaluation.confusions:
        terminal.table(evaluation.frequent_confusions())
    terminal.write(f"written: {evaluation.folder}")

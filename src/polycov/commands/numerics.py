"""``polycov bench --what fuzz gradients``: are the numbers right?"""

from polycov.bench.tables import Row
from polycov.commands.terminal import Terminal
from polycov.errors import PolycovError
from polycov.system.tables import Table

SHOWN = 20  # failing cases
FEW = 10  # cases that are all described


def fuzz(terminal: Terminal, first: int, cases: int) -> list[Row]:
    """Runs random cases, shows those that fail, and sums up by spec.

    Raises:
        PolycovError: if a case fails.
    """
    from polycov.bench.fuzz.check import run_cases, summary  # needs NumPy

    outcomes = []
    with terminal.progress.task("cases", cases) as task:
        for outcome in run_cases(first, cases):
            outcomes.append(outcome)
            task.advance()
            if outcome.problem or cases <= FEW:
                terminal.write(f"case {outcome.number}: {outcome.problem or 'right'}; {outcome.description}")
            if sum(1 for o in outcomes if o.problem) > SHOWN:
                break
    rows = summary(outcomes)
    cells = [(row["spec"], row["cases"], f"{row['largest_error']:.2f}", row["failed"]) for row in rows]
    terminal.table(Table(("spec", "cases", "largest error / tolerance", "failed"), cells))
    failed = [outcome.number for outcome in outcomes if outcome.problem]
    if failed:
        raise PolycovError(
            f"{len(failed)} of {len(outcomes)} cases failed. Run one again with: polycov bench --what fuzz --first "
            f"{failed[0]} --cases 1"
        )
    terminal.write(f"{len(outcomes)} cases, from {first} to {first + len(outcomes) - 1}: all within their tolerance.")
    return rows


def gradients(terminal: Terminal) -> list[Row]:
    """Measures the errors of gradients by condition number."""
    from polycov.bench.gradients import CONDITIONS, gradients, methods

    with terminal.progress.task("gradients", len(CONDITIONS) * len(list(methods()))) as task:
        rows = list(gradients(task.advance))
    cells = []
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        cells.append((own[0]["group"], name, *(f"{row['median_error']:.0e}" for row in own)))
    columns = ("group", "gradient", *(f"κ = {condition:.0e}" for condition in CONDITIONS))
    terminal.table(Table(columns, cells, "median relative error of the gradient"))
    return rows

"""Where a comparison stands, while it runs."""

from collections.abc import Sequence

from polycov.comparing.grid import Setting
from polycov.comparing.records import Record
from polycov.comparing.statistics import method_title
from polycov.progress import duration
from polycov.system.tables import Table


def live_table(
    records: Sequence[Record], settings: Sequence[Setting], remaining: Sequence[Setting], score: str = "accuracy"
) -> Table:
    """Returns the mean test score by method and dimension so far, and the time remaining."""
    keys = {setting.key for setting in settings}
    cells: dict[tuple[str, int | None], list[float]] = {}
    times = []
    for record in records:
        if record.key in keys:
            cells.setdefault((record.method, record.dim), []).append(record.measurement.test_accuracy)
            times.append(record.seconds)
    dims = [None, *sorted({setting.dim for setting in settings if setting.dim is not None})]
    left = f", about {duration(len(remaining) * sum(times) / len(times))} left" if times and remaining else ""
    title = f"test {score}, {len(settings) - len(remaining)} of {len(settings)} settings{left}"
    rows = []
    for method in dict.fromkeys(setting.method for setting in settings):
        means = (cells.get((method, dim)) for dim in dims)
        accuracies = (f"{sum(values) / len(values):.1%} ({len(values)})" if values else "" for values in means)
        rows.append((method_title(method), *accuracies))
    return Table(("method", *("own size" if dim is None else str(dim) for dim in dims)), rows, title)

"""The parts of ``polycov bench`` about very many images."""

from dataclasses import dataclass
from typing import Literal

from polycov.bench.tables import Row
from polycov.commands.terminal import Terminal
from polycov.system.files import cache_folder
from polycov.system.tables import Table


@dataclass(frozen=True)
class ScaleOptions:
    """How many images."""

    load: float = 1.0
    """With load: share of the names and classes; 0 to embed images only. With memory: share of the 21 GB."""
    load_images: int = 100_000
    """With load: number of images to embed."""
    layout: tuple[Literal["folders", "tar"], ...] = ("folders",)
    """With load: image files in folders, or tar shards."""
    search_images: int = 200_000
    """With search: number of generated features."""
    copied_images: int = 300
    """With duplicates: number of images of --data that are copied."""


def load(terminal: Terminal, options: ScaleOptions) -> list[Row]:
    """Measures the machinery under load, and shows the table."""
    from polycov.bench.load import load  # needs the extra train

    rows = []
    for row in load(options.load, options.load_images, options.layout):
        terminal.write(", ".join(f"{key} {value}" for key, value in row.items()))  # it may be a long time to the end
        rows.append(row)
    cells = [
        [cell if isinstance(cell, str) or cell is None else f"{cell:,.0f}" for cell in row.values()] for row in rows
    ]
    columns = ("what", "images", "seconds", "per second", "at the end", "MiB", "at the end")
    terminal.table(Table(columns, cells, "load: rate and peak of memory, in the first tenth and at the end"))
    return rows


def probe(terminal: Terminal, rounds: int) -> list[Row]:
    """Measures the closed-form probe beside a factorisation for each strength."""
    from polycov.bench.probe import SIZES, probe_times

    with terminal.progress.task("probe", len(SIZES) * (rounds + 1)) as task:
        rows = list(probe_times(rounds, task.advance))
    cells = []
    for row in rows:
        sizes = (row["images"], row["dimensions"], row["classes"])
        times = (f"{row['milliseconds']:,.0f}", f"{row['ratio']:.2f}")
        found = (f"{row['strength']:.2g}", f"{100 * row['test_accuracy']:.1f}", row["other_predictions"])
        cells.append((row["probe"], *sizes, *times, *found))
    columns = (
        "probe",
        "images",
        "dimensions",
        "classes",
        "ms",
        "× the first",
        "strength",
        "test %",
        "other predictions",
    )
    terminal.table(Table(columns, cells, "closed-form probe, with a choice among 14 strengths and a last fit"))
    return rows


def memory(terminal: Terminal, share: float) -> list[Row]:
    """Measures the peak of memory on features that are ten times as large."""
    from polycov.bench.memory import memory  # needs the extra train

    rows = list(memory(share, cache_folder(), terminal.progress))
    cells = []
    for row in rows:
        accuracy = "" if row["test_accuracy"] is None else f"{100 * row['test_accuracy']:.1f}"
        peak = "" if row["peak_mib"] is None else f"{row['peak_mib']:,.0f}"
        cells.append((row["what"], row["images"], f"{row['gigabytes']:.1f}", f"{row['seconds']:,.0f}", accuracy, peak))
    columns = ("what", "images", "GB", "seconds", "test %", "peak MiB so far")
    terminal.table(Table(columns, cells, "probes on a feature store, by a process with at most 2 GB of data"))
    return rows


def search(terminal: Terminal, options: ScaleOptions) -> list[Row]:
    """Measures the index of a search against exact search, and shows the table."""
    from polycov.bench.search import search_times  # needs the extra search

    rows = list(search_times(options.search_images, terminal.progress))
    cells = [
        ["" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row.values()]
        for row in rows
    ]
    terminal.table(Table([name.replace("_", " ") for name in rows[0]], cells, "search among generated features"))
    return rows


def duplicates(terminal: Terminal, options: ScaleOptions, data: str) -> list[Row]:
    """Measures which cosines copies of images have, and shows the table."""
    from polycov.bench.duplicates import duplicate_thresholds  # needs the extra train

    rows = list(duplicate_thresholds(data, options.copied_images, terminal.progress))
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
    terminal.table(Table(list(rows[0]), cells, f"copies of {options.copied_images} images of {data}"), sections=True)
    return rows

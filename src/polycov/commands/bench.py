"""``polycov bench``: measures, prints, and writes CSV files and figures."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.table import Table

from polycov.bench import tables
from polycov.bench.figures import growth_figure
from polycov.bench.ideas import GROUPS, folding_error, ideas
from polycov.bench.measure import hardware, slug
from polycov.bench.tables import GROWTH, PAPER, PLAIN, ROUTE_GRID, STEP_BACKBONES, Row, Shape
from polycov.errors import PolycovError
from polycov.progress import make_console, make_progress
from polycov.system.files import write_csv

What = Literal["methods", "dims", "growth", "routes", "step", "ideas"]


@dataclass
class Bench:
    """Measure time and memory of the methods against a plain iSQRT-COV, in one run and in turns."""

    what: tuple[What, ...] = ("methods",)
    """methods: the table of times and memory. dims: does time depend on the dimension? growth: one size varied at a
    time, with figures. routes: is the cheapest route chosen? step: whole training steps with real backbones (needs
    timm). ideas: what was tried beside what is done."""
    batch: int = 10
    """Samples."""
    side: int = 28
    """Maps have side × side locations."""
    channels: int = 256
    """Channels of the features."""
    dim: int = 8192
    """Dimensions of the sketches."""
    iterations: int = 5
    """Newton–Schulz iterations."""
    methods: tuple[str, ...] = ("isqrt-cov", "ipccp-ts", "ipccp-cs", "ipccp-rm", "monet-2-ts", "cbp-ts")
    """Methods to measure; "NAME, gram", "NAME, covariance" and "NAME, paper" force a route."""
    compile: bool = False
    """With ideas: also try torch.compile (needs a C++ compiler)."""
    paper: bool = True
    """Also measure the paper's algorithm as printed (slow)."""
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """Of the features."""
    device: str = "cpu"
    """Where to run."""
    threads: int | None = None
    """Threads of the CPU; by default all cores."""
    rounds: int = 15
    """How often each thing is timed."""
    out: Path = field(default_factory=lambda: Path("benchmarks/results"))
    """Folder for the CSV files and figures."""


def run(options: Bench) -> None:
    """Runs the benchmark.

    Raises:
        PolycovError: if the device does not exist, or a method is unknown.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise PolycovError(f"The device {options.device!r} is not there: this torch sees no GPU.")
    shape = Shape(
        options.batch,
        options.side**2,
        options.channels,
        options.dim,
        options.iterations,
        options.dtype,
        options.device,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    console = make_console()
    console.print(f"{hardware(options.device)}; torch {torch.__version__}; {options.dtype}; {options.rounds} rounds")
    for what in options.what:
        rows = RUNS[what](options, shape, console)
        path = _write(options, what, rows)
        console.print(f"written: {path}", soft_wrap=True)
        if what == "growth":
            console.print(f"written: {growth_figure(rows, path.with_suffix('.svg'))}", soft_wrap=True)


def _write(options: Bench, what: str, rows: list[Row]) -> Path:
    name = f"{what}-{slug(hardware(options.device))}-{options.dtype}-torch{torch.__version__.partition('+')[0]}.csv"
    path = options.out / name
    cells = ([row[name] for name in rows[0]] for row in rows)
    write_csv(path, rows[0], ([f"{v:.4g}" if isinstance(v, float) else v for v in row] for row in cells))
    return path


def _methods(options: Bench, shape: Shape, console: Console) -> list[Row]:
    names = [PLAIN, *options.methods]
    with make_progress(console) as progress:
        task = progress.add_task("methods", total=2 * (options.rounds + 1) + (8 if options.paper else 0))
        rows = tables.measure(shape, names, options.rounds, lambda: progress.advance(task), memory=True)
        if options.paper:  # few rounds, beside the reference: it is some sixty times slower
            slow = tables.measure(shape, [PLAIN, PAPER], 3, lambda: progress.advance(task), memory=True)
            rows += [row for row in slow if row["method"] == PAPER]
    table = Table(
        title=f"B={shape.batch}, N={shape.locations}, C={shape.channels}, D={shape.dim}, k={shape.iterations}"
    )
    for column in ("method", "eval ms", "× plain", "train ms", "× plain", "eval MiB", "train MiB", "× plain"):
        table.add_column(column, justify="left" if column == "method" else "right")
    by = {(row["method"], row["mode"]): row for row in rows}
    for name in dict.fromkeys(row["method"] for row in rows):
        e, t, plain = by[name, "eval"], by[name, "train"], by[PLAIN, "train"]
        cells = [_spread(e, "milliseconds"), _ratio(e), _spread(t, "milliseconds"), _ratio(t)]
        memory = [f"{e['peak_mib']:.0f}", f"{t['peak_mib']:.0f}", f"{t['peak_mib'] / plain['peak_mib']:.2f}"]
        table.add_row(name, *cells, *memory)
    console.print(table)
    console.print("Medians with quartiles; ratios are taken round by round. MiB: peak of what torch allocates.")
    return rows


def _spread(row: Row, key: str) -> str:
    return f"{row[key]:.1f} ({row['lower_quartile']:.1f}–{row['upper_quartile']:.1f})"


def _ratio(row: Row) -> str:
    return f"{row['ratio']:.2f} ({row['ratio_lower_quartile']:.2f}–{row['ratio_upper_quartile']:.2f})"


def _dims(options: Bench, shape: Shape, console: Console) -> list[Row]:
    with make_progress(console) as progress:
        task = progress.add_task("dimensions", total=4 * (options.rounds + 1))
        rows = list(tables.dims(shape, options.rounds, lambda: progress.advance(task)))
    table = Table("method", "mode", "D", "ms", f"× D={tables.DIMS[0]}")
    for row in rows:
        spread = _spread(row, "milliseconds")
        table.add_row(row["method"], row["mode"], str(row["dim"]), spread, f"{row['ratio']:.2f}")
    console.print(table)
    return rows


def _growth(options: Bench, shape: Shape, console: Console) -> list[Row]:
    rounds = max(options.rounds // 3, 1)
    with make_progress(console) as progress:
        task = progress.add_task("growth", total=2 * (rounds + 1) * sum(map(len, GROWTH.values())))
        rows = list(tables.growth(shape, rounds, lambda: progress.advance(task)))
    for size in GROWTH:
        table = Table("mode", size, *tables.GROWTH_METHODS, title=f"milliseconds against {size}")
        for mode in tables.MODES:
            for value in GROWTH[size]:
                here = {r["method"]: r for r in rows if (r["varied"], r["mode"], r[size]) == (size, mode, value)}
                cells = (f"{here[m]['milliseconds']:.1f}" if m in here else "–" for m in tables.GROWTH_METHODS)
                table.add_row(mode, str(value), *cells)
        console.print(table)
    return rows


def _routes(options: Bench, shape: Shape, console: Console) -> list[Row]:
    rounds = max(options.rounds // 2, 1)
    with make_progress(console) as progress:
        task = progress.add_task("routes", total=2 * (rounds + 1) * len(ROUTE_GRID))
        rows = list(tables.routes(shape, rounds, lambda: progress.advance(task)))
    table = Table("mode", "N", "C", "covariance ms", "gram ms", "chosen", "chosen / best")
    for row in rows:
        times = (f"{row['covariance_ms']:.2f}", f"{row['gram_ms']:.2f}")
        sizes = (str(row["locations"]), str(row["channels"]))
        table.add_row(row["mode"], *sizes, *times, row["chosen"], f"{row['chosen_over_best']:.2f}")
    console.print(table)
    wrong = [row for row in rows if row["chosen_over_best"] > 1.15]
    console.print(f"{len(wrong)} of {len(rows)} choices are more than 15 % from the best.")
    return rows


def _step(options: Bench, shape: Shape, console: Console) -> list[Row]:
    rounds = max(options.rounds // 5, 1)
    with make_progress(console) as progress:
        task = progress.add_task("training steps", total=(rounds + 1) * len(STEP_BACKBONES))
        rows = list(tables.whole_steps(shape, rounds, lambda: progress.advance(task)))
    table = Table("backbone", "map", "pooling", "seconds a step", "pooling ms", "share of the plain step")
    for row in rows:
        seconds = f"{row['step_seconds']:.2f}" if row["step_seconds"] else ""
        cells = (seconds, f"{1e3 * row['pool_seconds']:.1f}", f"{100 * row['share']:.2f} %")
        table.add_row(row["backbone"], row["map"], row["method"], *cells)
    console.print(table)
    return rows


def _ideas(options: Bench, shape: Shape, console: Console) -> list[Row]:
    with make_progress(console) as progress:
        total = (options.rounds + 1) * (GROUPS + (2 if options.compile else 0))
        task = progress.add_task("ideas", total=total)
        rows = list(ideas(shape, options.rounds, lambda: progress.advance(task), options.compile))
    table = Table("what", "idea", "ms", "× the first")
    for row in rows:
        table.add_row(row["group"], row["idea"], _spread(row, "milliseconds"), f"{row['ratio']:.2f}")
    console.print(table)
    lost, ours = folding_error()
    console.print(
        f"Error of the covariance at a mean of 100 spreads: {lost:.0e} with centring folded in, ours {ours:.0e}."
    )
    return rows


RUNS = {"methods": _methods, "dims": _dims, "growth": _growth, "routes": _routes, "step": _step, "ideas": _ideas}

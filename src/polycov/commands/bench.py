"""``polycov bench``."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from polycov.bench import tables
from polycov.bench.figures import faithfulness_figure, gradients_figure, growth_figure
from polycov.bench.ideas import GROUPS, folding_error, ideas
from polycov.bench.measure import slug
from polycov.bench.tables import GROWTH, PAPER, PLAIN, ROOTS, ROUTE_GRID, Row, Shape
from polycov.commands import numerics, scale
from polycov.commands.parsing import parse
from polycov.commands.pipeline import Backend, run_backends, run_pipeline
from polycov.commands.scale import ScaleOptions
from polycov.commands.terminal import Terminal
from polycov.errors import PolycovError
from polycov.explaining.faithfulness_options import FaithfulnessOptions
from polycov.explaining.hiding import Hide
from polycov.system.devices import choose_device
from polycov.system.environment import hardware
from polycov.system.tables import Cell, Table

Times = Literal["methods", "dims", "growth", "routes", "step", "ideas", "roots", "explain", "pipeline", "backends"]
What = Times | Literal["faithfulness", "fuzz", "gradients", "load", "probe", "memory", "search", "duplicates"]


@dataclass(frozen=True)
class Bench:
    """Measure time and memory of the methods against a plain iSQRT-COV, interleaved in one run; or their errors."""

    what: tuple[What, ...] = ("methods",)
    """methods: times and memory. dims: does time depend on the dimension? growth: one size varied at a time, with
    figures. routes: is the cheapest route chosen? step: whole steps with real backbones, beside the paper's Table 3
    (needs timm). ideas: alternatives that were tried. roots: matrix functions beside the exact root, on real features
    (needs timm). explain: explanations beside a forward pass. faithfulness: what hiding the regions of maps does to the
    score (needs --run). fuzz: random cases against a reference in float64. gradients: their errors by condition number,
    beside formulas from elsewhere. load: very many images, names, classes (needs timm). pipeline: images per second of
    each part from files to features; backends: ways to run a backbone (need timm). probe: the closed-form probe.
    memory: probes on 21 GB in 2 GB, in the cache folder (needs timm). search: recall and time of an index (needs
    faiss). duplicates: the cosines of copies of images (needs timm)."""
    batch: int = 10
    """Samples per batch."""
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
    """With ideas and backends: also try torch.compile (needs a C++ compiler)."""
    paper: bool = True
    """Also measure the paper's algorithm as printed (slow)."""
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """Data type of the features."""
    device: str = "auto"
    """auto (CUDA, then MPS, then CPU), or a device such as cuda:1."""
    threads: int | None = None
    """CPU threads; default: all cores."""
    rounds: int = 0
    """Number of timings of each; 0 for 15, but 5 with growth, 7 with routes, 3 with step and probe."""
    functions: tuple[str, ...] = ROOTS
    """With roots: functions as they appear in a spec; times are relative to the first."""
    data: str = "typefaces"
    """With roots and duplicates: images, as for train. With pipeline and backends: a folder; default generated ones."""
    backend: Backend = "auto"
    """With pipeline: what runs the backbone."""
    seeds: int = 3
    """With roots: number of seeds of the accuracy."""
    run: tuple[Path, ...] = ()
    """With faithfulness: folders of finished runs."""
    images: int = FaithfulnessOptions.images
    """With faithfulness: number of test images, chosen by a seed. With pipeline: number of images."""
    maps: tuple[str, ...] = FaithfulnessOptions.maps
    """With faithfulness: maps to compare; also exact-runner-up and grad-cam-reduced."""
    share: float = FaithfulnessOptions.step
    """With faithfulness: share of the area that is hidden per step."""
    hide: Hide = FaithfulnessOptions.hide
    """With faithfulness: hidden regions show the image blurred, or its mean colour."""
    cases: int = 100_000
    """With fuzz: number of cases."""
    first: int = 0
    """With fuzz: number of the first case; each number is always the same case."""
    scale: ScaleOptions = field(default_factory=ScaleOptions)
    out: Path = Path("benchmarks/results")
    """Folder for the CSV files and figures."""


def run(arguments: list[str]) -> None:
    """Runs the benchmarks."""
    options = parse(
        Bench, "bench", arguments, positional={}, lists=("what", "methods", "functions", "run", "maps", "layout")
    )
    if options.rounds < 0:
        raise PolycovError(f"Expected --rounds of at least 1, or 0 for the default, got {options.rounds}.")
    if options.threads:
        torch.set_num_threads(options.threads)
    device = str(choose_device(options.device))
    sizes = (options.batch, options.side**2, options.channels, options.dim, options.iterations)
    shape = Shape(*sizes, options.dtype, device)
    options.out.mkdir(parents=True, exist_ok=True)
    terminal = Terminal()
    terminal.write(f"{hardware(device)}; torch {torch.__version__}; {options.dtype}")
    for what in options.what:
        rows = RUNS[what](replace(options, rounds=options.rounds or ROUNDS.get(what, 15)), shape, terminal)
        path = _write(options, device, what, rows)
        terminal.write(f"written: {path}")
        if what in FIGURES:
            terminal.write(f"written: {FIGURES[what](rows, path.with_suffix('.svg'))}")


def _write(options: Bench, device: str, what: str, rows: list[Row]) -> Path:
    name = f"{what}-{slug(hardware(device))}-{options.dtype}-torch{torch.__version__.partition('+')[0]}.csv"
    cells = [[f"{v:.4g}" if isinstance(v, float) else v for v in row.values()] for row in rows]
    Table(list(rows[0]), cells).to_csv(options.out / name)
    return options.out / name


def _methods(options: Bench, shape: Shape, terminal: Terminal) -> list[Row]:
    names = [PLAIN, *options.methods]
    with terminal.progress.task("methods", 2 * (options.rounds + 1) + (8 if options.paper else 0)) as task:
        rows = tables.measure(shape, names, options.rounds, task.advance, memory=True)
        if options.paper:  # few rounds, beside the reference: it is some sixty times slower
            slow = tables.measure(shape, [PLAIN, PAPER], 3, task.advance, memory=True)
            rows += [row for row in slow if row["method"] == PAPER]
    by = {(row["method"], row["mode"]): row for row in rows}
    cells = []
    for name in dict.fromkeys(row["method"] for row in rows):
        e, t, plain = by[name, "eval"], by[name, "train"], by[PLAIN, "train"]
        memory = (f"{e['peak_mib']:.0f}", f"{t['peak_mib']:.0f}", f"{t['peak_mib'] / plain['peak_mib']:.2f}")
        cells.append((name, _spread(e), _ratio(e), _spread(t), _ratio(t), *memory))
    columns = ("method", "eval ms", "× plain", "train ms", "× plain", "eval MiB", "train MiB", "× plain")
    title = f"B={shape.batch}, N={shape.locations}, C={shape.channels}, D={shape.dim}, k={shape.iterations}"
    terminal.table(Table(columns, cells, title))
    terminal.write("Medians with quartiles; ratios are per round. MiB: peak of torch's allocations.")
    return rows


def _spread(row: Row) -> str:
    return f"{row['milliseconds']:.1f} ({row['lower_quartile']:.1f}–{row['upper_quartile']:.1f})"


def _ratio(row: Row) -> str:
    return f"{row['ratio']:.2f} ({row['ratio_lower_quartile']:.2f}–{row['ratio_upper_quartile']:.2f})"


def _dims(options: Bench, shape: Shape, terminal: Terminal) -> list[Row]:
    with terminal.progress.task("dimensions", 4 * (options.rounds + 1)) as task:
        rows = list(tables.dims(shape, options.rounds, task.advance))
    cells = [(row["method"], row["mode"], row["dim"], _spread(row), f"{row['ratio']:.2f}") for row in rows]
    terminal.table(Table(("method", "mode", "D", "ms", f"× D={tables.DIMS[0]}"), cells))
    return rows


def _growth(options: Bench, shape: Shape, terminal: Terminal) -> list[Row]:
    with terminal.progress.task("growth", 2 * (options.rounds + 1) * sum(map(len, GROWTH.values()))) as task:
        rows = list(tables.growth(shape, options.rounds, task.advance))
    for size in GROWTH:
        cells: list[list[Cell]] = []
        for mode in tables.MODES:
            for value in GROWTH[size]:
                here = {r["method"]: r for r in rows if (r["varied"], r["mode"], r[size]) == (size, mode, value)}
                times = (f"{here[m]['milliseconds']:.1f}" if m in here else "–" for m in tables.GROWTH_METHODS)
                cells.append([mode, value, *times])
        terminal.table(Table(("mode", size, *tables.GROWTH_METHODS), cells, f"milliseconds against {size}"))
    return rows


def _routes(options: Bench, shape: Shape, terminal: Terminal) -> list[Row]:
    with terminal.progress.task("routes", 2 * (options.rounds + 1) * len(ROUTE_GRID)) as task:
        rows = list(tables.routes(shape, options.rounds, task.advance))
    cells = []
    for row in rows:
        times = (f"{row['covariance_ms']:.2f}", f"{row['gram_ms']:.2f}", row["chosen"])
        cells.append((row["mode"], row["locations"], row["channels"], *times, f"{row['chosen_over_best']:.2f}"))
    terminal.table(Table(("mode", "N", "C", "covariance ms", "gram ms", "chosen", "chosen / best"), cells))
    wrong = sum(row["chosen_over_best"] > 1.15 for row in rows)
    terminal.write(f"{wrong} of {len(rows)} choices are more than 15 % slower than the best.")
    return rows


def _step(options: Bench, shape: Shape, terminal: Terminal) -> list[Row]:
    from polycov.bench import steps  # needs the extra train

    with terminal.progress.task("steps", 2 * (options.rounds + 1) * len(steps.STEP_BACKBONES)) as task:
        rows = list(steps.whole_steps(shape, options.rounds, task.advance))
    cells = []
    for row in rows:
        seconds = f"{row['step_seconds']:.2f}" if row["step_seconds"] else ""
        times = (seconds, f"{1e3 * row['pool_seconds']:.1f}", f"{100 * row['share']:.2f} %", f"{row['ratio']:.2f}")
        paper = "" if row["paper_ratio"] is None else f"{row['paper_ratio']:.2f}"
        cells.append((row["backbone"], row["mode"], row["method"], *times, paper))
    columns = ("backbone", "mode", "pooling", "seconds", "pooling ms", "share of the plain step", "× plain", "paper's")
    terminal.table(Table(columns, cells))
    return rows


def _ideas(options: Bench, shape: Shape, terminal: Terminal) -> list[Row]:
    total = (options.rounds + 1) * (GROUPS + (2 if options.compile else 0))
    with terminal.progress.task("ideas", total) as task:
        rows = list(ideas(shape, options.rounds, task.advance, options.compile))
    cells = [(row["group"], row["idea"], _spread(row), f"{row['ratio']:.2f}") for row in rows]
    terminal.table(Table(("what", "idea", "ms", "× the first"), cells))
    folded, ours = folding_error()
    terminal.write(
        f"Error of the covariance when the mean is 100 times the spread: {folded:.0e} with centring folded in, "
        f"{ours:.0e} with ours."
    )
    return rows


def _roots(options: Bench, shape: Shape, terminal: Terminal) -> list[Row]:
    from polycov.bench.roots import local_features, roots  # needs the extra train

    local = local_features(options.data, terminal.progress)
    with terminal.progress.task("roots", 2 * (options.rounds + 1) + options.seeds * len(options.functions)) as task:
        rows = list(roots(options.functions, shape, local, options.rounds, options.seeds, task.advance))
    cells = []
    for row in rows:
        errors = (f"{100 * row['distance']:.1f} %", f"{100 * row['gradient_error']:.0f} %")
        times = (
            f"{row['eval_ms']:.1f}",
            f"{row['eval_ratio']:.2f}",
            f"{row['train_ms']:.1f}",
            f"{row['train_ratio']:.2f}",
        )
        accuracies = (_accuracy(row, split) for split in ("val", "test"))
        products = "eigenvalues" if row["products"] is None else row["products"]
        cells.append((row["function"], products, *times, *errors, *accuracies))
    ratio = f"× {options.functions[0]}"
    columns = ("function", "products", "eval ms", ratio, "train ms", ratio, "distance", "gradient", "val %", "test %")
    terminal.table(Table(columns, cells, f"{options.data}, {options.seeds} seeds"))
    return rows


def _accuracy(row: Row, split: str) -> str:
    mean, error = row[f"{split}_accuracy"], row[f"{split}_error"]
    return "–" if mean is None else f"{mean:.1f}" if error is None else f"{mean:.1f} ± {error:.1f}"


def _explain(options: Bench, shape: Shape, terminal: Terminal) -> list[Row]:
    from polycov.bench.explain import FORWARD, METHODS, explain_times  # needs the extra train

    with terminal.progress.task("explanations", 2 * len(METHODS) * (options.rounds + 1)) as task:
        rows = list(explain_times(shape, options.rounds, task.advance))
    sizes = ("method", "locations", "channels", "what")
    cells = [(*(row[s] for s in sizes), _spread(row), _ratio(row)) for row in rows if row["what"] != FORWARD]
    terminal.table(Table(("method", "N", "C", "what", "ms", "× forward"), cells))
    return rows


def _faithfulness(options: Bench, shape: Shape, terminal: Terminal) -> list[Row]:
    from polycov.bench.explain import run_faithfulness  # needs the extra train

    if not options.run:
        raise PolycovError("The benchmark 'faithfulness' needs a finished run: add --run RUN.")
    chosen = FaithfulnessOptions(options.images, options.maps, options.share, options.hide)
    rows: list[Row] = []
    for folder in options.run:
        result, own = run_faithfulness(folder, chosen, shape.device, terminal.progress)
        terminal.write(f"{folder}: {len(result.images)} images, {result.accuracy:.1%} classified correctly")
        terminal.table(result.table())
        for name in result.maps:
            inside = result.inside(name)
            if inside is not None:
                share, gain = inside
                terminal.write(f"{name}: evidence inside the boxes {share}, less the share of the area {gain}")
        rows += own
    return rows


RUNS = {
    "methods": _methods,
    "dims": _dims,
    "growth": _growth,
    "routes": _routes,
    "step": _step,
    "ideas": _ideas,
    "roots": _roots,
    "explain": _explain,
    "faithfulness": _faithfulness,
    "fuzz": lambda options, shape, terminal: numerics.fuzz(terminal, options.first, options.cases),
    "gradients": lambda options, shape, terminal: numerics.gradients(terminal),
    "load": lambda options, shape, terminal: scale.load(terminal, options.scale),
    "probe": lambda options, shape, terminal: scale.probe(terminal, options.rounds),
    "memory": lambda options, shape, terminal: scale.memory(terminal, options.scale.load),
    "search": lambda options, shape, terminal: scale.search(terminal, options.scale),
    "duplicates": lambda options, shape, terminal: scale.duplicates(terminal, options.scale, options.data),
    "pipeline": lambda o, shape, terminal: run_pipeline(terminal, o.data, o.images, o.backend, o.rounds),
    "backends": lambda o, shape, terminal: run_backends(terminal, o.data, o.compile, o.rounds),
}
ROUNDS = {"growth": 5, "routes": 7, "step": 3, "probe": 3}  # of what takes long
FIGURES = {"growth": growth_figure, "faithfulness": faithfulness_figure, "gradients": gradients_figure}

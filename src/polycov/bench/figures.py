"""Figures of the benchmarks."""

from functools import partial
from pathlib import Path
from typing import Any

from polycov.bench.tables import GROWTH, GROWTH_METHODS, MODES, Row
from polycov.errors import MissingDependencyError
from polycov.system.files import write_file

SIZES = {"locations": "locations N", "channels": "channels C", "dim": "dimensions D"}


def growth_figure(rows: list[Row], path: Path) -> Path:
    """Draws time against the number of locations, channels and dimensions, in both modes.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    figure = _figure(11, 6.4)
    axes = figure.subplots(2, len(SIZES), sharex="col")
    for row, mode in zip(axes, MODES, strict=True):
        for axis, size in zip(row, SIZES, strict=True):
            _draw(axis, [r for r in rows if (r["varied"], r["mode"]) == (size, mode)], size)
        row[0].set_ylabel("milliseconds, " + ("forward" if mode == "eval" else "forward and backward"))
    for top, bottom, label in zip(*axes, SIZES.values(), strict=True):
        top.set_title(f"against {label}")
        bottom.set_xlabel(label)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return _write(figure, path)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("Figures need matplotlib. Install it with: pip install 'polycov[cli]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def _write(figure: Any, path: Path) -> Path:
    write_file(path, partial(figure.savefig, format=path.suffix[1:]))
    return path


def _draw(axis: Any, rows: list[Row], size: str) -> None:
    """Draws time against one size."""
    for method in GROWTH_METHODS:
        own = [r for r in rows if r["method"] == method]
        style = ":" if "," in method else "-"
        axis.plot([r[size] for r in own], [r["milliseconds"] for r in own], style, marker="o", ms=3, label=method)
    axis.set_xscale("log")
    axis.set_xticks(GROWTH[size], [str(v) for v in GROWTH[size]], fontsize=8)
    if size == "dim":
        axis.set_ylim(bottom=0)  # constant: a logarithmic axis would only show noise
    else:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.grid(alpha=0.3)


LABELS = {
    "exact": "exact map",
    "exact-runner-up": "exact map, against the runner-up",
    "grad-cam": "Grad-CAM",
    "grad-cam-reduced": "Grad-CAM, reduced features",
    "grad-cam-block": "Grad-CAM, one block earlier",
    "hires-cam": "HiResCAM",
    "random": "random order",
    "untrained": "untrained classifier",
}
STYLES = {"exact": "-", "exact-runner-up": "-.", "random": ":", "untrained": "--"}


def faithfulness_figure(rows: list[Row], path: Path) -> Path:
    """Draws the probability against the share of the area hidden or shown, with 95 % intervals; a row of axes per pool.

    Args:
        rows: of `polycov.bench.explain.faithfulness_rows`.
        path: of the figure.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    pools = list(dict.fromkeys(row["pool"] for row in rows))
    figure = _figure(10, 3.9 * len(pools) + 0.6)
    axes = figure.subplots(len(pools), 2, sharey="row", squeeze=False)
    for pool, (deletion, insertion) in zip(pools, axes, strict=True):
        own = [row for row in rows if (row["pool"], row["score"]) == (pool, "probability") and row["share"] is not None]
        for axis, kind in ((deletion, "deletion"), (insertion, "insertion")):
            _draw_curves(axis, [row for row in own if row["curve"] == kind])
            axis.set_title(f"{pool}: {kind}")
            axis.set_xlabel("share of the area " + ("hidden" if kind == "deletion" else "shown"))
        deletion.set_ylabel("probability of the predicted class")
    found = [axis.get_legend_handles_labels() for axis in axes.flat]
    handles = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False)
    return _write(figure, path)


def _draw_curves(axis: Any, rows: list[Row]) -> None:
    """Draws one line with a band per map."""
    for name in dict.fromkeys(row["map"] for row in rows):
        own = [row for row in rows if row["map"] == name]
        shares, style, colour = [row["share"] for row in own], STYLES.get(name, "-"), f"C{list(LABELS).index(name)}"
        axis.plot(shares, [row["mean"] for row in own], style, color=colour, label=LABELS[name])
        bounds = ([row[end] for row in own] for end in ("low", "high"))
        axis.fill_between(shares, *bounds, color=colour, alpha=0.15, linewidth=0)
    axis.set_xlim(0, 1)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)


def gradients_figure(rows: list[Row], path: Path) -> Path:
    """Draws the errors of gradients against the condition number: of the exact root, and of Newton–Schulz iterations.

    Args:
        rows: of `polycov.bench.gradients.gradients`.
        path: of the figure.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    figure = _figure(11, 6.4)
    roots, iterated = figure.subplots(1, 2, sharey=True)
    exact = [row for row in rows if row["iterations"] is None and row["group"] != "approximate"]
    _draw_errors(roots, [row for row in exact if not row["method"].endswith("float64")])
    _draw_errors(iterated, [row for row in rows if row["iterations"] is not None])
    roots.set_title("gradient of the exact root, features in float32")
    iterated.set_title("gradient of k Newton–Schulz iterations, features in float32")
    roots.set_ylabel("relative error of the gradient, median")
    return _write(figure, path)


NOT_FINITE = 1e2  # where an error that is not finite is drawn


def _draw_errors(axis: Any, rows: list[Row]) -> None:
    """Draws one line per method: those of the library are solid, of the same colour as their counterpart."""
    counts = list(dict.fromkeys(row["iterations"] for row in rows))
    for i, name in enumerate(dict.fromkeys(row["method"] for row in rows)):
        own = [row for row in rows if row["method"] == name]
        ours = own[0]["group"] == "polycov"
        colour = f"C{i if len(counts) == 1 else counts.index(own[0]['iterations'])}"
        errors = [min(row["median_error"], NOT_FINITE) for row in own]
        style = {"linestyle": "-" if ours else "--", "linewidth": 2.2 if ours else 1.2, "marker": "o", "ms": 3}
        axis.plot([row["condition"] for row in own], errors, color=colour, label=name, **style)
    axis.axhline(NOT_FINITE, color="0.6", linewidth=0.8)
    axis.text(2, 1.3 * NOT_FINITE, "not finite, or above 100", fontsize=8, color="0.4")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(1e-8, 1e3)
    axis.set_xlabel("condition number of the covariance")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)

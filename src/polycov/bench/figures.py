"""Figures of the benchmarks."""

from pathlib import Path
from typing import Any

from polycov.bench.tables import GROWTH, GROWTH_METHODS, MODES, Row
from polycov.errors import MissingDependencyError

SIZES = {"locations": "locations N", "channels": "channels C", "dim": "dimensions D"}


def growth_figure(rows: list[Row], path: Path) -> Path:
    """Draws time against the number of locations, channels and dimensions, in both modes.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("Figures need matplotlib. Install it with: pip install 'polycov[cli]'") from error

    figure = Figure(figsize=(11, 6.4), layout="constrained")
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
    figure.savefig(path)
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

"""The figures of a comparison, as SVG and PNG."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polycov.comparing.statistics import Point, method_title

# Distinguishable with most kinds of colour vision, on white and on black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d", "#d1495b", "#66a61e")
X = {
    "dimensions": ("dimensions", lambda point: point.dimensions),
    "bytes": ("bytes per image (float32)", lambda point: point.bytes),
    "time": ("pooling time per image, ms", lambda point: point.pool_ms),
}


def colour_of(methods: Sequence[str]) -> dict[str, str]:
    """Returns a colour for each method."""
    return {method: COLOURS[i % len(COLOURS)] for i, method in enumerate(methods)}


def ticks_to_label(values: Sequence[float]) -> list[float]:
    """Returns the values to label on a logarithmic axis: the most frequent first, without overlaps.

    Example:
        >>> ticks_to_label([496, 512, 512, 1024, 8192, 8192, 8256])
        [512, 1024, 8192]
    """
    count, span = Counter(values), math.log(max(values) / min(values))
    kept: list[float] = []
    for value in sorted(count, key=lambda v: (-count[v], v)):
        if all(abs(math.log(value / other)) > 0.06 * span for other in kept):
            kept.append(value)
    return sorted(kept)


def write_figures(folder: Path, points: Sequence[Point]) -> list[str]:
    """Draws accuracy against size, bytes and time, the paper's two figures, and the kernel error.

    Returns:
        The names of the figures; each is written as SVG and PNG.
    """
    colours = colour_of(list(dict.fromkeys(point.method for point in points)))
    drawn = []
    for name, (label, value) in X.items():
        drawn.append(_draw(folder, f"accuracy-{name}", points, colours, label, value))
    for sketch, title in (("ts", "tensor sketch"), ("rm", "random Maclaurin")):
        some = [p for p in points if p.method in ("isqrt-cov", f"ipccp-{sketch}", f"monet-2-{sketch}")]
        if any(p.method.endswith(sketch) for p in some):
            drawn.append(_draw(folder, f"paper-{sketch}", some, colours, "dimensions", X["dimensions"][1], title))
    errors = [point for point in points if point.kernel_error is not None]
    if errors:
        drawn.append(
            _draw(folder, "kernel-error", errors, colours, "dimensions", X["dimensions"][1], y=lambda p: p.kernel_error)
        )
    return [name for name in drawn if name]


def _draw(
    folder: Path,
    name: str,
    points: Sequence[Point],
    colours: dict[str, str],
    label: str,
    x: Callable[[Point], Any],
    title: str = "",
    y: Callable[[Point], Any] | None = None,
) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shown = [point for point in points if x(point) is not None]
    if not shown:
        return ""
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axis = figure.subplots()
    for method in dict.fromkeys(point.method for point in shown):
        here = sorted((point for point in shown if point.method == method), key=x)
        values = [100 * (y(p) if y else p.test) for p in here]
        errors = [0.0 if y or math.isnan(p.test_error) else 100 * p.test_error for p in here]
        style: dict[str, Any] = {
            "color": colours[method],
            "label": method_title(method),
            "marker": "o",
            "ms": 4,
            "capsize": 2,
        }
        axis.errorbar([x(p) for p in here], values, errors, **style)
        if len(here) == 1 and y is None:
            axis.axhline(values[0], color=colours[method], lw=0.8, ls=":")
    axis.set(xscale="log", xlabel=label, title=title, ylabel="kernel error, %" if y else "test accuracy, %")
    if y:
        axis.set_yscale("log")
    if x is not X["time"][1]:
        ticks = ticks_to_label([x(p) for p in shown])
        axis.set_xticks(ticks, [str(tick) for tick in ticks], rotation=40, fontsize=8)
        axis.minorticks_off()
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    with rc_context({"svg.hashsalt": name}):  # the same records, the same file
        for kind in ("svg", "png"):
            figure.savefig(folder / f"{name}.{kind}", dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return name

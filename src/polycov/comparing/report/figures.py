"""The figures of a comparison, as SVG and PNG."""

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polycov.comparing.statistics import Point, method_title
from polycov.system.files import write_file

# Distinguishable with most kinds of colour vision, on white and on black.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d", "#d1495b", "#66a61e"),
    *("#e7298a", "#1b4f72", "#7f7f7f", "#17becf", "#6b8e23", "#b15928"),
)
X = {
    "dimensions": ("dimensions", lambda point: point.dimensions),
    "bytes": ("bytes per image (float32)", lambda point: point.bytes),
    "time": ("pooling time per image, ms", lambda point: point.pool_ms),
}


@dataclass(frozen=True)
class Axis:
    """What a figure shows, in percent.

    Attributes:
        label: of the axis.
        metric: a further metric of the points; default: their score, or with a logarithmic axis their kernel error.
        logarithmic: whether the axis is.
    """

    label: str
    metric: str | None = None
    logarithmic: bool = False

    def value(self, point: Point) -> tuple[float, float]:
        """Returns the value of a point and its error."""
        value, error = (point.test, point.test_error) if self.metric is None else point.metrics[self.metric]
        if self.logarithmic:
            value, error = point.kernel_error or 0.0, math.nan
        return 100 * value, 0.0 if math.isnan(error) else 100 * error


def colours_of(points: Sequence[Point]) -> dict[str, str]:
    """Returns a colour for each method."""
    methods = dict.fromkeys(point.method for point in points)
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


def write_figures(
    folder: Path, points: Sequence[Point], score: str = "accuracy", stored: Sequence[Point] = ()
) -> list[str]:
    """Draws the score against size, bytes and time, the paper's two figures, further metrics, the kernel error and
    the recommended feature in ever fewer bytes.

    Returns:
        The names of the figures; each is written as SVG and PNG.
    """
    colours, axis = colours_of(points), Axis(f"test {score}")
    drawn = []
    for name, (label, value) in X.items():
        drawn.append(_draw(folder, f"{score}-{name}", points, colours, label, value, y=axis))
    for sketch, title in (("ts", "tensor sketch"), ("rm", "random Maclaurin")):
        some = [p for p in points if p.method in ("isqrt-cov", f"ipccp-{sketch}", f"monet-2-{sketch}")]
        if any(p.method.endswith(sketch) for p in some):
            drawn.append(_draw(folder, f"paper-{sketch}", some, colours, *X["dimensions"], title, y=axis))
    for name in dict.fromkeys(name for point in points for name in point.metrics):
        some = [point for point in points if name in point.metrics]
        file = f"{name.replace(' ', '-')}-dimensions"
        drawn.append(_draw(folder, file, some, colours, *X["dimensions"], y=Axis(name, metric=name)))
    if stored:
        both = [*points, *stored]
        colours[stored[0].method] = "black"
        drawn.append(_draw(folder, f"{score}-stored", both, colours, "bytes per image", X["bytes"][1], y=axis))
    errors = [point for point in points if point.kernel_error is not None]
    if errors:
        logarithmic = Axis("kernel error", logarithmic=True)
        drawn.append(_draw(folder, "kernel-error", errors, colours, *X["dimensions"], y=logarithmic))
    return [name for name in drawn if name]


def _draw(
    folder: Path,
    name: str,
    points: Sequence[Point],
    colours: dict[str, str],
    label: str,
    x: Callable[[Point], Any],
    title: str = "",
    *,
    y: Axis,
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
        values, errors = zip(*(y.value(p) for p in here), strict=True)
        style: dict[str, Any] = {
            "color": colours[method],
            "label": textwrap.fill(method_title(method), 30),  # a spec may be long
            "marker": "o",
            "ms": 4,
            "capsize": 2,
        }
        axis.errorbar([x(p) for p in here], values, errors, **style)
        if len(here) == 1 and not y.logarithmic:
            axis.axhline(values[0], color=colours[method], lw=0.8, ls=":")
    axis.set(xscale="log", xlabel=label, title=title, ylabel=f"{y.label}, %")
    if y.logarithmic:
        axis.set_yscale("log")
    if x is not X["time"][1]:
        ticks = ticks_to_label([x(p) for p in shown])
        axis.set_xticks(ticks, [str(tick) for tick in ticks], rotation=40, fontsize=8)
        axis.minorticks_off()
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    with rc_context({"svg.hashsalt": name}):  # the same records, the same file
        for kind in ("svg", "png"):
            metadata = {"Date": None} if kind == "svg" else None
            save = partial(figure.savefig, format=kind, dpi=150, metadata=metadata)
            write_file(folder / f"{name}.{kind}", save)
    return name

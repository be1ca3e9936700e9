"""The tables of a comparison: on the terminal, as CSV and as LaTeX."""

import math
from collections.abc import Sequence
from pathlib import Path

from polycov.comparing.statistics import Difference, Point, method_title
from polycov.system.files import write_file

Cell = str | int | float | None
HEAD = (
    "method",
    "dimensions",
    "bytes",
    "channels",
    "seeds",
    "test_accuracy",
    "test_standard_error",
    "val_accuracy",
    "val_standard_error",
    "minus_isqrt_cov",
    "low",
    "high",
    "p",
    "pool_ms",
    "kernel_error",
    "float16_change",
    "int8_change",
)


def rows(points: Sequence[Point], differences: dict[tuple[str, int | None], Difference]) -> list[list[Cell]]:
    """Returns the whole table, a row a point, as `HEAD` names the columns."""
    made: list[list[Cell]] = []
    for point in points:
        gap = differences.get((point.method, point.dim))
        numbers = [gap.mean, gap.low, gap.high, gap.p] if gap else [None] * 4
        made.append(
            [
                method_title(point.method),
                point.dimensions,
                point.bytes,
                point.channels,
                point.seeds,
                point.test,
                point.test_error,
                point.val,
                point.val_error,
                *numbers,
                point.pool_ms,
                point.kernel_error,
                point.float16,
                point.int8,
            ]
        )
    return made


def percent(value: float, error: float = math.nan) -> str:
    """Returns an accuracy in percent, with its standard error if there is one.

    Example:
        >>> percent(0.781, 0.0042), percent(0.5)
        ('78.1 ± 0.4', '50.0')
    """
    return f"{100 * value:.1f}" + ("" if math.isnan(error) else f" ± {100 * error:.1f}")


def gap_in_words(gap: Difference | None) -> str:
    """Returns a difference in points with its interval; a star if it is measurable."""
    if gap is None:
        return ""
    star = " *" if gap.measurable else ""
    mean, low, high = (round(100 * value, 1) + 0.0 for value in (gap.mean, gap.low, gap.high))  # 0 has no minus
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f}){star}"


def write_latex(path: Path, points: Sequence[Point], differences: dict[tuple[str, int | None], Difference]) -> None:
    """Writes the table of accuracies against uncompressed isqrt-cov as LaTeX (booktabs)."""
    lines = [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"method & dimensions & test accuracy (\%) & minus iSQRT-COV & ms a picture \\",
        r"\midrule",
    ]
    for point in points:
        gap = differences.get((point.method, point.dim))
        accuracy = f"${percent(point.test, point.test_error).replace('±', chr(92) + 'pm')}$"
        minus = f"${100 * gap.mean:+.1f}$" if gap else ""
        time = f"{point.pool_ms:.2f}" if point.pool_ms is not None else ""
        name = method_title(point.method).replace("_", r"\_").replace("|", r"\textbar{}")
        lines.append(rf"{name} & {point.dimensions} & {accuracy} & {minus} & {time} \\")
    lines += [r"\bottomrule", r"\end{tabular}", ""]
    write_file(path, lambda beside: beside.write_text("\n".join(lines), encoding="utf-8"))

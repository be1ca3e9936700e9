"""The tables of a comparison: numbers for CSV and pandas, texts for reading, LaTeX for a paper."""

import math
from pathlib import Path

from polycov.comparing.statistics import Difference, method_title
from polycov.comparing.study import Study
from polycov.system.files import write_text
from polycov.system.tables import Cell, Table

COLUMNS = (
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


def full_table(study: Study) -> Table:
    """Returns all numbers, a row per method and size."""
    rows: list[list[Cell]] = []
    for point in study.points:
        gap = study.differences.get(point.key)
        paired = [gap.mean, gap.low, gap.high, gap.p] if gap else [None] * 4
        accuracies = [point.test, point.test_error, point.val, point.val_error]
        sizes = [point.dimensions, point.bytes, point.channels, point.seeds]
        rest = [point.pool_ms, point.kernel_error, point.float16, point.int8]
        rows.append([method_title(point.method), *sizes, *accuracies, *paired, *rest])
    return Table(COLUMNS, rows, study.name)


def summary_table(study: Study) -> Table:
    """Returns the main numbers as texts, a row per method and size; without columns that would be empty."""
    columns = ("method", "dimensions", "test %", "validation %", "minus isqrt-cov", "ms per image", "kernel error %")
    rows: list[tuple[Cell, ...]] = [
        (
            method_title(point.method),
            point.dimensions,
            percent(point.test, point.test_error),
            percent(point.val, point.val_error),
            difference_in_words(study.differences.get(point.key)),
            "" if point.pool_ms is None else f"{point.pool_ms:.2f}",
            "" if point.kernel_error is None else f"{100 * point.kernel_error:.1f}",
        )
        for point in study.points
    ]
    filled = [i for i in range(len(columns)) if any(row[i] != "" for row in rows)]
    title = f"{study.name}: accuracy on {study.counts['test']} test images, mean ± standard error over seeds"
    return Table([columns[i] for i in filled], [[row[i] for i in filled] for row in rows], title)


def percent(value: float, error: float = math.nan) -> str:
    """Returns an accuracy in percent, with its standard error if there is one.

    Example:
        >>> percent(0.781, 0.0042), percent(0.5)
        ('78.1 ± 0.4', '50.0')
    """
    return f"{100 * value:.1f}" + ("" if math.isnan(error) else f" ± {100 * error:.1f}")


def difference_in_words(gap: Difference | None) -> str:
    """Returns a difference in points with its interval; a star if it is measurable."""
    if gap is None:
        return ""
    star = " *" if gap.measurable else ""
    mean, low, high = (round(100 * value, 1) + 0.0 for value in (gap.mean, gap.low, gap.high))  # no minus zero
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f}){star}"


def write_latex(path: Path, study: Study) -> None:
    """Writes the accuracies against uncompressed isqrt-cov as LaTeX (booktabs)."""
    lines = [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"method & dimensions & test accuracy (\%) & minus iSQRT-COV & ms per image \\",
        r"\midrule",
    ]
    for point in study.points:
        gap = study.differences.get(point.key)
        accuracy = f"${percent(point.test, point.test_error).replace('±', chr(92) + 'pm')}$"
        minus = f"${100 * gap.mean:+.1f}$" if gap else ""
        time = f"{point.pool_ms:.2f}" if point.pool_ms is not None else ""
        name = method_title(point.method).replace("_", r"\_").replace("|", r"\textbar{}")
        lines.append(rf"{name} & {point.dimensions} & {accuracy} & {minus} & {time} \\")
    lines += [r"\bottomrule", r"\end{tabular}", ""]
    write_text(path, "\n".join(lines))

"""The tables of a comparison: numbers for CSV and pandas, texts for reading, LaTeX for a paper."""

import math
from collections.abc import Sequence
from pathlib import Path

from polycov.comparing.statistics import Difference, Point, method_title
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
    "parameters",
    "interval_over_episodes",
)


def full_table(study: Study) -> Table:
    """Returns all numbers, a row per method and size."""
    names = study.metrics
    rows: list[list[Cell]] = []
    for point in study.points:
        gap = study.differences.get(point.key)
        paired = [gap.mean, gap.low, gap.high, gap.p] if gap else [None] * 4
        accuracies = [point.test, point.test_error, point.val, point.val_error]
        sizes = [point.dimensions, point.bytes, point.channels, point.seeds]
        rest = [point.pool_ms, point.kernel_error, point.float16, point.int8, point.parameters, point.interval]
        further = [value for name in names for value in point.metrics.get(name, (None, None))]
        rows.append([method_title(point.method), *sizes, *accuracies, *paired, *rest, *further])
    score = study.protocol.score.replace(" ", "_")
    columns = [column.replace("accuracy", score) for column in COLUMNS]
    slugs = [name.replace(" ", "_") for name in names]
    columns += [column for name in slugs for column in (name, f"{name}_standard_error")]
    return Table(tuple(columns), rows, study.name)


def summary_table(study: Study) -> Table:
    """Returns the main numbers as texts, a row per method and size; without columns that would be empty."""
    score = study.protocol.score
    metrics = [f"{name} %" for name in study.metrics]
    last = ("validation %", "minus isqrt-cov", "ms per image", "kernel error %")
    columns = ("method", "dimensions", score_column(study), *metrics, *last)
    rows: list[tuple[Cell, ...]] = [
        (
            method_title(point.method),
            point.dimensions,
            percent(point.test, point.test_error),
            *(metric_in_words(point, name) for name in study.metrics),
            percent(point.val, point.val_error),
            difference_in_words(study.differences.get(point.key)),
            "" if point.pool_ms is None else f"{point.pool_ms:.2f}",
            "" if point.kernel_error is None else f"{100 * point.kernel_error:.1f}",
        )
        for point in study.points
    ]
    filled = [i for i in range(len(columns)) if any(row[i] != "" for row in rows)]
    counted = "test episodes" if study.protocol.unit == "episodes" else f"{study.counts['test']} test images"
    title = f"{study.name}: {score} on {counted}, mean ± standard error over seeds"
    return Table([columns[i] for i in filled], [[row[i] for i in filled] for row in rows], title)


def stored_table(study: Study) -> Table:
    """Returns the recommended feature in ever fewer bytes."""
    rows: list[list[Cell]] = [[point.code, point.bytes, point.test, point.test_error] for point in study.stored]
    score = study.protocol.score
    return Table(("code", "bytes", f"test_{score}", f"test_{score}_standard_error"), rows, study.name)


def score_column(study: Study) -> str:
    """Returns the heading of the test scores, for reading."""
    return "test %" if study.protocol.score == "accuracy" else f"{study.protocol.score} %"


def percent(value: float, error: float = math.nan) -> str:
    """Returns an accuracy in percent, with its standard error if there is one.

    Example:
        >>> percent(0.781, 0.0042), percent(0.5)
        ('78.1 ± 0.4', '50.0')
    """
    return f"{100 * value:.1f}" + ("" if math.isnan(error) else f" ± {100 * error:.1f}")


def metric_in_words(point: Point, name: str) -> str:
    """Returns a further metric of a point in percent; empty if the point does not have it."""
    return percent(*point.metrics[name]) if name in point.metrics else ""


def difference_in_words(gap: Difference | None) -> str:
    """Returns a difference in points with its interval; a star if it is measurable."""
    if gap is None:
        return ""
    star = " *" if gap.measurable else ""
    mean, low, high = (round(100 * value, 1) + 0.0 for value in (gap.mean, gap.low, gap.high))  # no minus zero
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f}){star}"


def write_latex(path: Path, study: Study) -> None:
    """Writes the accuracies against uncompressed isqrt-cov as LaTeX (booktabs)."""
    names = study.metrics
    further = "".join(rf" & {name} (\%)" for name in names)
    lines = [
        rf"\begin{{tabular}}{{lrrrrr{'r' * len(names)}}}",
        r"\toprule",
        rf"method & dimensions & test {study.protocol.score} (\%){further} & minus iSQRT-COV & ms per image "
        r"& parameters \\",
        r"\midrule",
    ]
    for point in study.points:
        gap = study.differences.get(point.key)
        accuracy = " & ".join(_latex(text) for text in _percents(point, names))
        minus = f"${100 * gap.mean:+.1f}$" if gap else ""
        time = f"{point.pool_ms:.2f}" if point.pool_ms is not None else ""
        name = method_title(point.method).replace("_", r"\_").replace("|", r"\textbar{}")
        size = "" if point.parameters is None else str(point.parameters)
        lines.append(rf"{name} & {point.dimensions} & {accuracy} & {minus} & {time} & {size} \\")
    lines += [r"\bottomrule", r"\end{tabular}", ""]
    write_text(path, "\n".join(lines))


def _percents(point: Point, names: Sequence[str]) -> list[str]:
    return [percent(point.test, point.test_error), *(metric_in_words(point, name) for name in names)]


def _latex(text: str) -> str:
    return f"${text.replace('±', chr(92) + 'pm')}$" if text else ""

"""``polycov report``: tables, figures and the page of comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polycov.comparing.report.figures import write_figures
from polycov.comparing.report.page import Study, write_page
from polycov.comparing.report.tables import HEAD, gap_in_words, percent, rows, write_latex
from polycov.comparing.statistics import (
    Record,
    against_uncompressed,
    method_title,
    points,
    recommend,
    storing_in_words,
)
from polycov.errors import PolycovError
from polycov.progress import make_console
from polycov.system.files import read_json_lines, read_json, write_csv


@dataclass
class Report:
    """Write the page, figures and tables of comparisons again."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of comparisons; several make one page."""
    out: Path | None = None
    """Folder for report.html; by default the first of them."""


def run(options: Report) -> None:
    """Writes the report.

    Raises:
        PolycovError: if a folder is not a comparison, or nothing in it is done.
    """
    if not options.runs:
        raise PolycovError("Expected folders of comparisons.")
    for folder in options.runs:
        show(read_study(folder), make_console())
    write_report(options.runs, options.out or options.runs[0], make_console())


def show(study: Study, console: Console) -> None:
    """Prints the table of a comparison, its recommendation, and what storing features costs."""
    console.print(terminal_table(study))
    said = [study.recommendation.words() if study.recommendation else "", storing_in_words(study.points)]
    for words in filter(None, said):
        console.print(words, markup=False)


def write_report(folders: Sequence[Path], out: Path, console: Console) -> Path:
    """Writes tables and figures of each comparison, and one page, which it returns."""
    places = [out if folder.resolve() == out.resolve() else out / folder.resolve().name for folder in folders]
    places = [p if places.count(p) == 1 else p.with_name(f"{p.name}-{i + 1}") for i, p in enumerate(places)]
    studies = []
    for folder, place in zip(folders, places, strict=True):
        study = read_study(folder)
        (place / "figures").mkdir(parents=True, exist_ok=True)
        (place / "tables").mkdir(parents=True, exist_ok=True)
        write_figures(place / "figures", study.points)
        write_csv(place / "tables" / "comparison.csv", HEAD, rows(study.points, study.differences))
        write_latex(place / "tables" / "comparison.tex", study.points, study.differences)
        studies.append(study)
    page = out / "report.html"
    write_page(page, studies)
    console.print(f"page: {page}", soft_wrap=True, markup=False)
    return page


def read_study(folder: Path) -> Study:
    """Reads a comparison from its folder.

    Raises:
        PolycovError: if it is not one, or nothing is done.
    """
    if not (folder / "config.json").is_file() or "identity" not in read_json(folder / "config.json"):
        raise PolycovError(f"{str(folder)!r} is not a comparison.")
    config = read_json(folder / "config.json")
    try:
        return _study(folder, config)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, PolycovError):
            raise
        raise PolycovError(f"The records of {str(folder)!r} are damaged: {type(error).__name__} {error}.") from error


def _study(folder: Path, config: dict[str, Any]) -> Study:
    found = {(row["method"], row["dim"], row["seed"]): row for row in read_json_lines(folder / "records.jsonl")}
    records = list(found.values())
    if not records:
        raise PolycovError(f"The comparison {str(folder)!r} has no records yet.")
    count = config["counts"]["test"]
    if any(row.get("test_pictures", count) != count for row in records):
        raise PolycovError(f"The records of {str(folder)!r} are of different numbers of test pictures.")
    splits = {int(path.stem): read_json(path) for path in sorted((folder / "splits").glob("*.json"))}
    gallery, features = folder / "gallery.json", folder / "features.json"
    return Study(
        config["data"],
        len(config["classes"]),
        config["counts"],
        config["identity"]["head"],
        points(records),
        against_uncompressed(records, config["counts"]["test"]),
        recommend(records, splits),
        read_json(gallery) if gallery.is_file() else None,
        facts(config, read_json(features) if features.is_file() else {}, records),
    )


def facts(config: dict[str, Any], features: dict[str, Any], records: list[Record]) -> list[tuple[str, str]]:
    """Returns what the end of the page says: data, backbone, command, versions, hardware, duration."""
    first = records[0]
    model = config["identity"]["config"]["model"]
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    machines = "; ".join(dict.fromkeys(row["hardware"] for row in records))
    return [
        ("data", f"{config['data']} ({'; '.join(config['notes'])})" if config["notes"] else config["data"]),
        ("backbone", f"{model['backbone']}, weights {model['weights']}{_where(features)}"),
        ("command", config.get("command", "")),
        ("settings", f"{len(records)}, of {len({row['method'] for row in records})} methods"),
        ("time", f"{in_words(sum(row['seconds'] for row in records))} of work, without local features"),
        ("hardware", machines),
        ("versions", versions),
    ]


def in_words(seconds: float) -> str:
    """Returns a duration in words.

    Example:
        >>> in_words(50), in_words(150)
        ('50 seconds', '2.5 minutes')
    """
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.1f} minutes"


def _where(features: dict[str, Any]) -> str:
    if not features:
        return ""
    return (
        f", {features['stage']}: {features['locations']} locations of {features['channels']} channels in pictures of "
        f"{features['size']} pixels"
    )


def terminal_table(study: Study) -> Table:
    """Returns the main table for a terminal."""
    table = Table(title=Text(f"{study.name}: test accuracy, mean ± standard error over seeds"))
    for name in ("method", "dimensions", "test %", "validation %", "minus isqrt-cov", "ms a picture", "kernel error %"):
        table.add_column(name, justify="left" if name == "method" else "right")
    last = None
    for point in study.points:
        if last is not None and last != point.method:
            table.add_section()
        last = point.method
        table.add_row(
            Text(method_title(point.method)),
            str(point.dimensions),
            percent(point.test, point.test_error),
            percent(point.val, point.val_error),
            gap_in_words(study.differences.get((point.method, point.dim))),
            "" if point.pool_ms is None else f"{point.pool_ms:.2f}",
            "" if point.kernel_error is None else f"{100 * point.kernel_error:.1f}",
        )
    return table

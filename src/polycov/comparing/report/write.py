"""Writing the report of one or several comparisons: page, figures, tables."""

from collections.abc import Sequence
from pathlib import Path

from polycov.comparing.report.figures import write_figures
from polycov.comparing.report.page import write_page
from polycov.comparing.report.tables import full_table, write_latex
from polycov.comparing.study import Study


def write_report(studies: Sequence[Study], folders: Sequence[Path], out: Path) -> Path:
    """Writes tables and figures of each comparison, and one page, which it returns.

    Args:
        studies: the comparisons.
        folders: folders of the comparisons.
        out: folder for the page; the files of each comparison go into a folder below with its name, or right beside the
            page if that goes into the folder of the comparison.
    """
    places = [out if folder.resolve() == out.resolve() else out / folder.resolve().name for folder in folders]
    places = [p if places.count(p) == 1 else p.with_name(f"{p.name}-{i + 1}") for i, p in enumerate(places)]
    for study, place in zip(studies, places, strict=True):
        for folder in ("figures", "tables"):
            (place / folder).mkdir(parents=True, exist_ok=True)
        write_figures(place / "figures", study.points)
        full_table(study).to_csv(place / "tables" / "comparison.csv")
        write_latex(place / "tables" / "comparison.tex", study)
    page = out / "report.html"
    write_page(page, studies)
    return page

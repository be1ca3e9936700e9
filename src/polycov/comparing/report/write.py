"""Writing the report of one or several comparisons: page, figures, tables."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from polycov.comparing.comparison_folder import ComparisonFolder
from polycov.comparing.report.figures import write_figures
from polycov.comparing.report.page import write_page
from polycov.comparing.report.tables import full_table, stored_table, write_latex
from polycov.comparing.study import Study
from polycov.system.files import write_file


def write_report(studies: Sequence[Study], folders: Sequence[Path], out: Path) -> Path:
    """Writes tables and figures of each comparison, and one page, which it returns.

    Args:
        studies: the comparisons.
        folders: folders of the comparisons.
        out: folder for the page; the files of each comparison go into a subfolder with its name, or next to the page if
            this is the folder of the comparison.
    """
    places = [out if folder.resolve() == out.resolve() else out / folder.resolve().name for folder in folders]
    places = [p if places.count(p) == 1 else p.with_name(f"{p.name}-{i + 1}") for i, p in enumerate(places)]
    links: list[str | None] = []
    for study, folder, place in zip(studies, folders, places, strict=True):
        for name in ("figures", "tables"):
            (place / name).mkdir(parents=True, exist_ok=True)
        write_figures(place / "figures", study.points, study.protocol.score, study.stored)
        full_table(study).to_csv(place / "tables" / "comparison.csv")
        if study.stored:
            stored_table(study).to_csv(place / "tables" / "bytes.csv")
        write_latex(place / "tables" / "comparison.tex", study)
        links.append(_explanations(ComparisonFolder(folder).explanations, place, out))
    page = out / "report.html"
    write_page(page, studies, links)
    return page


def _explanations(source: Path, place: Path, out: Path) -> str | None:
    """The link from the page to the explanations of a comparison, copied if necessary; None if there are none."""
    if not source.is_file():
        return None
    copy = place / source.name
    if copy.resolve() != source.resolve():
        write_file(copy, lambda temporary: shutil.copyfile(source, temporary))
    return quote(copy.relative_to(out).as_posix())

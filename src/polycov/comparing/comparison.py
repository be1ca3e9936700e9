"""The result of a comparison: records, summary, recommendation, report."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polycov.comparing.recommendation import Recommendation
from polycov.comparing.records import Record
from polycov.comparing.report.tables import full_table, summary_table
from polycov.comparing.report.write import write_report
from polycov.comparing.statistics import Difference, Point, PointKey
from polycov.comparing.study import Study, read_study, storage_in_words, stored_in_words
from polycov.system.tables import Table


@dataclass(frozen=True)
class Comparison:
    """A comparison that was measured, in whole or in part.

    Attributes:
        folder: folder with its files; the same call resumes or extends it.
        study: its results.
    """

    folder: Path
    study: Study

    @property
    def records(self) -> Sequence[Record]:
        """One record per setting: method, dimension, seed, and what was measured."""
        return self.study.records

    @property
    def points(self) -> Sequence[Point]:
        """Methods at their sizes: means over seeds with standard errors."""
        return self.study.points

    @property
    def differences(self) -> dict[PointKey, Difference]:
        """Differences to uncompressed isqrt-cov on the same test images, by method and dimension."""
        return self.study.differences

    @property
    def recommendation(self) -> Recommendation | None:
        """The smallest feature that is not measurably below the best, on validation."""
        return self.study.recommendation

    @property
    def summary(self) -> Table:
        """The results as a table of numbers; ``summary.to_pandas()`` for a DataFrame."""
        return full_table(self.study)

    def table(self) -> Table:
        """Returns the results as a table of texts, for reading."""
        return summary_table(self.study)

    def words(self) -> list[str]:
        """Returns the recommendation, and what storing features in fewer bytes costs, in words."""
        stored = (storage_in_words(self.points, self.study.protocol.score), stored_in_words(self.study.stored))
        return [text for text in (str(self.recommendation or ""), *stored) if text]

    @property
    def next_command(self) -> str:
        """The command that trains a classifier with the recommended feature; empty if there is none."""
        return self.study.next_command

    def report(self, path: str | Path | None = None) -> Path:
        """Writes the page, figures and tables, by default into the folder of the comparison; returns the page."""
        return report([self], path)

    def __str__(self) -> str:
        return "\n".join([f"{len(self.records)} settings in {self.folder}", *self.words()])

    def _repr_html_(self) -> str:
        """For notebooks."""
        words = "".join(f"<p>{html.escape(text)}</p>" for text in self.words())
        return f"{self.table()._repr_html_()}{words}"


def load_comparison(folder: str | Path) -> Comparison:
    """Reads a comparison from its folder.

    Raises:
        PolycovError: if the folder is not a comparison, or nothing is done.
    """
    return Comparison(Path(folder), read_study(Path(folder)))


def report(comparisons: Sequence[Comparison], out: str | Path | None = None) -> Path:
    """Writes one page for several comparisons, with figures and tables of each; returns the page.

    Args:
        comparisons: comparisons to report.
        out: folder for the page; default: that of the first comparison.
    """
    folders = [comparison.folder for comparison in comparisons]
    return write_report([comparison.study for comparison in comparisons], folders, Path(out or folders[0]))

"""The result of an evaluation: accuracy with its interval, per class, and which classes are confused."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polycov.system.json_files import write_json
from polycov.system.tables import Table


@dataclass(frozen=True)
class ClassResult:
    """The result of one class."""

    name: str
    images: int
    correct: int
    accuracy: float


@dataclass(frozen=True)
class Confusion:
    """How often images of one class were taken for another."""

    name: str
    predicted: str
    count: int


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        run: folder of the run.
        data: name of the data.
        split: which split was evaluated.
        mirror: whether mirror images were averaged over.
        notes: what to know about the data.
        images: their number.
        accuracy: share of correct predictions.
        interval: its 95 % interval.
        top5: share of images whose class is among the five most probable.
        loss: mean cross-entropy.
        mean_class_accuracy: mean of the accuracies of the classes.
        classes: the result of each class.
        confusions: the most frequent mistakes.
        predictions: a table with a row per image.
        confusion_matrix: a table with a row per class and a column per prediction; of more than 1,000 classes, with a
            row per pair that occurs.
        folder: where it was written.
    """

    run: str
    data: str
    split: str
    mirror: bool
    notes: list[str]
    images: int
    accuracy: float
    interval: tuple[float, float]
    top5: float
    loss: float
    mean_class_accuracy: float
    classes: list[ClassResult]
    confusions: list[Confusion]
    predictions: Table
    confusion_matrix: Table
    folder: Path | None = None

    def __str__(self) -> str:
        low, high = self.interval
        top5 = f", top five {self.top5:.2%}" if len(self.confusion_matrix.rows) > 5 else ""
        return (
            f"accuracy {self.accuracy:.2%} (95 %: {low:.1%} to {high:.1%}) on {self.images} images of {self.data}; "
            f"mean over classes {self.mean_class_accuracy:.2%}{top5}"
        )

    def hardest_classes(self, rows: int = 12) -> Table:
        """Returns a table of the classes with the lowest accuracy."""
        worst = sorted(self.classes, key=lambda row: row.accuracy)[:rows]
        title = "hardest classes" if len(self.classes) > rows else "classes"
        return Table(("class", "images", "correct"), [(r.name, r.images, f"{r.accuracy:.0%}") for r in worst], title)

    def frequent_confusions(self, rows: int = 12) -> Table:
        """Returns a table of the most frequent mistakes."""
        shown = [(c.name, c.predicted, c.count) for c in self.confusions[:rows]]
        return Table(("class", "predicted as", "times"), shown, "most frequent confusions")

    def to_dict(self) -> dict[str, Any]:
        """Returns what ``evaluation.json`` holds."""
        excluded = ("predictions", "confusion_matrix", "folder")
        return {name: value for name, value in asdict(self).items() if name not in excluded}

    def write(self, folder: Path) -> None:
        """Writes evaluation.json, predictions.csv and confusion.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "evaluation.json", self.to_dict())
        self.predictions.to_csv(folder / "predictions.csv")
        self.confusion_matrix.to_csv(folder / "confusion.csv")

    def _repr_html_(self) -> str:
        """For notebooks."""
        tables = (self.hardest_classes()._repr_html_(), self.frequent_confusions()._repr_html_())
        return f"<p>{self}</p>{''.join(tables)}"

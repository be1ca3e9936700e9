import csv
import json
from pathlib import Path

import pytest

from fake_images import write_classes
from polycov.errors import PolycovError
from polycov.inference.evaluate import EvaluateOptions, evaluate
from polycov.progress import LogProgress
from polycov.training.run_folder import RunFolder


def test_the_evaluation_of_the_test_split_is_that_of_the_run(finished: Path, tmp_path: Path) -> None:
    evaluation = evaluate(finished, workers=0, out=tmp_path / "out")
    test = RunFolder(finished).test_metrics()
    assert test is not None
    assert evaluation.accuracy == test["test_accuracy"]
    assert evaluation.interval == (test["low"], test["high"])
    assert evaluation.images == 9
    assert sum(row.images for row in evaluation.classes) == 9
    assert sum(row.correct for row in evaluation.classes) == round(9 * evaluation.accuracy)
    assert f"accuracy {evaluation.accuracy:.2%}" in str(evaluation)
    assert "ash" in evaluation._repr_html_()
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["accuracy"] == evaluation.accuracy
    with (tmp_path / "out" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    assert sum(row["class"] == row["prediction"] for row in rows) == round(9 * evaluation.accuracy)
    matrix = evaluation.confusion_matrix.rows
    assert sum(int(cell or 0) for row in matrix for cell in row[1:] if isinstance(cell, int)) == 9


def test_the_confusions_of_many_classes_are_listed(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = evaluate(finished, workers=0, out=tmp_path / "matrix").confusion_matrix
    monkeypatch.setattr("polycov.inference.evaluate.MAX_COLUMNS", 2)
    listed = evaluate(finished, workers=0, out=tmp_path / "list").confusion_matrix
    names = matrix.columns[1:]
    counted = {(row[0], name): count for row in matrix.rows for name, count in zip(names, row[1:], strict=True)}
    assert listed.columns == ("class", "prediction", "images")
    assert {(a, b): count for a, b, count in listed.rows} == {pair: n for pair, n in counted.items() if n}


def test_options_may_come_as_a_dataclass(finished: Path, tmp_path: Path) -> None:
    options = EvaluateOptions(str(finished), split="val", out=tmp_path / "out")
    assert evaluate(options, workers=0).images == 3  # one of six training images per class
    assert evaluate(options, workers=0, split="all").images == 27


def test_other_data_are_matched_by_class_names(finished: Path, tmp_path: Path) -> None:
    write_classes(tmp_path / "two", ["birch", "cedar"], 4)  # other indices than in training
    evaluation = evaluate(finished, data=str(tmp_path / "two"), workers=0, out=tmp_path / "out")
    assert [row.name for row in evaluation.classes] == ["birch", "cedar"]
    assert evaluation.images == 8
    write_classes(tmp_path / "more", ["birch", "zelkova"], 2)
    message = r"does not know 1 of the 2 classes: 'zelkova'\. It knows 'ash', 'birch', 'cedar'\."
    with pytest.raises(PolycovError, match=message):
        evaluate(finished, data=str(tmp_path / "more"), workers=0)


def test_an_exported_file_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(
        PolycovError, match=r"Expected the folder of a run, got the file .*model\.onnx'.*polycov predict"
    ):
        evaluate(tmp_path / "model.onnx")


def test_unreadable_images_stop_it_or_are_skipped(finished: Path, tmp_path: Path) -> None:
    write_classes(tmp_path / "two", ["birch", "cedar"], 4)
    (tmp_path / "two" / "birch" / "text.jpg").write_text("not an image")
    with pytest.raises(PolycovError, match="1 of 9 images is unreadable"):
        evaluate(finished, data=str(tmp_path / "two"), workers=0)
    lines: list[str] = []
    progress = LogProgress(lines.append)
    options = {"data": str(tmp_path / "two"), "workers": 0, "broken": "skip", "out": tmp_path / "out"}
    assert evaluate(finished, progress=progress, **options).images == 8
    assert any("text.jpg" in line for line in lines)


def test_mistakes(finished: Path, trees: Path) -> None:
    with pytest.raises(PolycovError, match="There is no run 'nowhere'"):
        evaluate("nowhere")
    with pytest.raises(PolycovError, match="Expected batch_size to be at least 1"):
        evaluate(finished, batch_size=0)
    with pytest.raises(PolycovError, match=r"Unknown option 'batchsize'.*Did you mean 'batch_size'"):
        evaluate(finished, batchsize=4)
    with pytest.raises(PolycovError, match="There is no split 'val' in"):
        evaluate(finished, data=str(trees / "test"), split="val", workers=0)

import shutil
from pathlib import Path

import pytest
import torch

from polycov.bench import explain, figures
from polycov.bench.tables import Shape
from polycov.explaining.faithfulness_options import FaithfulnessOptions
from polycov.explaining.faithfulness_result import CurveRecord, Faithfulness


def record(image: str, name: str, deletion: list[float], insertion: list[float]) -> CurveRecord:
    rows = ([deletion, deletion], [insertion, insertion])
    return CurveRecord("s", image, name, 0, 0, 0, [0, 2, 4], *rows, inside=0.75, area=0.25)


RESULT = Faithfulness(
    [
        *(record(image, "exact", [1.0, 0.0, 0.0], [0.0, 1.0, 1.0]) for image in "ab"),
        *(record(image, "random", [1.0, 0.5, 0.0], [0.0, 0.5, 1.0]) for image in "ab"),
    ]
)


def test_every_method_is_timed_at_both_shapes_beside_a_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "SMALLER", (4, 6))
    ticks: list[int] = []
    rows = list(explain.explain_times(Shape(2, 16, 8, 16), 2, lambda: ticks.append(1)))
    assert {row["method"] for row in rows} == set(explain.METHODS)
    assert {(row["locations"], row["channels"]) for row in rows} == {(16, 8), (4, 6)}
    assert len(rows) == 2 * 4 * len(explain.METHODS)
    assert len(ticks) == 2 * 3 * len(explain.METHODS)
    assert all(row["ratio"] == 1 for row in rows if row["what"] == explain.FORWARD)
    assert all(row["ratio"] > 0 for row in rows)


def test_rows_have_areas_differences_and_curves() -> None:
    rows = explain.faithfulness_rows(RESULT, {"pool": "isqrt-cov"})
    area = next(r for r in rows if (r["map"], r["curve"], r["share"]) == ("exact", "deletion", None))
    assert (area["images"], area["accuracy"], area["mean"]) == (2, 1.0, 0.25)
    assert (area["minus_random"], area["minus_exact"]) == (-0.25, 0.0)
    curve = [r["mean"] for r in rows if (r["map"], r["curve"], r["score"]) == ("random", "insertion", "margin")]
    assert curve == [0.5, 0.0, 0.5, 1.0]
    inside = {r["curve"]: r["mean"] for r in rows if r["score"] == "positive evidence" and r["map"] == "exact"}
    assert inside == {"inside box": 0.75, "inside box − area": 0.5}
    assert len({tuple(row) for row in rows}) == 1  # the same columns in every row


def test_the_figure_has_a_line_per_map_and_a_panel_per_curve(tmp_path: Path) -> None:
    rows = explain.faithfulness_rows(RESULT, {"pool": "isqrt-cov"})
    text = figures.faithfulness_figure(rows, tmp_path / "figure.svg").read_text(encoding="utf-8")
    for label in (
        "exact map",
        "random order",
        "isqrt-cov: deletion",
        "isqrt-cov: insertion",
        "share of the area shown",
    ):
        assert f"<!-- {label} -->" in text


def test_a_run_is_measured_and_resumed(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    options = FaithfulnessOptions(images=2, maps=("exact", "random"), step=0.5, orders=1)
    result, rows = explain.run_faithfulness(run, options)
    assert len(result.images) == 2
    assert rows[0]["data"] == "trees"
    lines = (run / "faithfulness" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4
    assert explain.run_faithfulness(run, options)[0] == result
    assert (run / "faithfulness" / "records.jsonl").read_text(encoding="utf-8").splitlines() == lines
    assert torch.is_grad_enabled()

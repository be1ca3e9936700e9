"""Whole comparisons, from Python and as a user runs them."""

import errno
import json
import os
from pathlib import Path

import pytest

from command_line import fails, stop
from fake_images import make_image, write_classes, write_data
from polycov.commands.main import main
from polycov.comparing.compare import compare
from polycov.errors import PolycovError
from polycov.progress import LogProgress
from polycov.training.run_folder import RunFolder, load_run
from small_comparison import TINY, flags, results


def test_a_comparison_is_complete_and_can_be_extended(forest: Path, tmp_path: Path) -> None:
    first = compare(forest, out=tmp_path / "cmp", seeds=1, **TINY)
    assert len(first.records) == 8
    before = results(tmp_path / "cmp")
    both = compare(forest, out=tmp_path / "cmp", seeds=2, **TINY)  # only the second seed remains to be measured
    assert len(both.records) == 16
    assert {key: results(tmp_path / "cmp")[key] for key in before} == before
    for record in both.records:
        assert record.measurement.stored is not None
        assert record.measurement.stored["float16"] == pytest.approx(record.measurement.test_accuracy, abs=0.06)
        assert record.measurement.pool_ms > 0
        assert record.versions
    assert len(both.points) == len(both.summary.rows) == 8
    assert both.recommendation is not None
    assert "use " in str(both.recommendation)
    assert both.study.gallery is not None
    assert both.summary.to_pandas()["test_accuracy"].between(0, 1).all()
    shown = both._repr_html_()
    assert "<table>" in shown
    assert "Too few images to be sure" in shown
    assert both.next_command.startswith(
        f"polycov train {forest} --probe --size 64 --backbone test_resnet --weights none"
    )
    assert both.next_command.endswith(" ".join(both.recommendation.train_flags()))


def test_a_comparison_on_reduced_features_has_the_same_first_order_results(forest: Path, tmp_path: Path) -> None:
    few = {**TINY, "methods": ("average", "average-last", "isqrt-cov"), "explain": False}
    full = compare(forest, out=tmp_path / "full", seeds=1, **few)
    reduced = compare(forest, out=tmp_path / "reduced", seeds=1, store_channels=16, **few)
    assert [record.key for record in full.records] == [record.key for record in reduced.records]
    for method in ("average", "average-last"):
        assert results(tmp_path / "full")[method, None, 0] == results(tmp_path / "reduced")[method, None, 0]
    assert {record.measurement.dimensions for record in full.records} == {
        record.measurement.dimensions for record in reduced.records
    }
    with pytest.raises(PolycovError, match="holds a comparison with store_channels 16, not None"):
        compare(forest, out=tmp_path / "reduced", seeds=1, **few)


def test_the_average_of_the_last_layer_is_that_of_the_last_stage(forest: Path, tmp_path: Path) -> None:
    few = {**TINY, "methods": ("average", "average-last"), "explain": False}
    compare(forest, out=tmp_path / "stage", seeds=1, **few)
    last = compare(forest, out=tmp_path / "last", seeds=1, **{**few, "stage": "last"})
    assert [record.method for record in last.records] == ["average"]  # the other would be the same
    assert results(tmp_path / "stage")["average-last", None, 0] == results(tmp_path / "last")["average", None, 0]


@pytest.mark.slow
def test_mistakes_are_explained_beside_the_report(tmp_path: Path) -> None:
    trees = write_data(tmp_path / "trees", train=12, test=6)
    make_image(1, 99).save(trees / "test" / "ash" / "099.jpg")  # a birch among the ashes
    few = {**TINY, "methods": ("average", "fewer-channels"), "dims": (8,)}
    plain = compare(trees, out=tmp_path / "cmp", seeds=1, explain=False, **few)
    assert not (tmp_path / "cmp" / "explanations.html").exists()
    assert "explanations.html" not in plain.report().read_text()
    comparison = compare(trees, out=tmp_path / "cmp", seeds=1, **few)
    page = tmp_path / "cmp" / "explanations.html"
    gallery = comparison.study.gallery
    assert gallery is not None
    hardest, pairs = gallery["hardest"], [pair["one"] for pair in gallery["pairs"]]
    assert hardest[0]["name"] == "test/ash/099.jpg"
    for entry in (*hardest, *pairs):
        assert f'id="{entry["explanation"]}"' in page.read_text()
        assert f"Why {entry['prediction']} and not {entry['class']}?" in page.read_text()
        assert f'href="explanations.html#{entry["explanation"]}"' in comparison.report().read_text()
    assert all("explanation" not in e for e in gallery["predictions"] if e["class"] == e["prediction"])
    (chosen,) = (tmp_path / "cmp" / "runs").iterdir()  # fitted again, to be explained
    (record,) = [r for r in comparison.records if r.measurement.spec == load_run(chosen).model.pool.spec]
    assert record.measurement.predictions == RunFolder(chosen).predictions()["test"]
    assert record.measurement.test_loss == pytest.approx(RunFolder(chosen).test_loss(), abs=2e-3)
    written = page.stat().st_mtime_ns
    assert compare(trees, out=tmp_path / "cmp", seeds=1, **few).study.gallery == gallery
    assert page.stat().st_mtime_ns == written  # nothing changed
    elsewhere = comparison.report(tmp_path / "else where").read_text()
    assert 'href="cmp/explanations.html#' in elsewhere
    assert (tmp_path / "else where" / "cmp" / "explanations.html").is_file()
    page.unlink()
    assert "explanations.html" not in comparison.report().read_text()  # no broken links


@pytest.mark.slow
def test_the_command_shows_the_result_and_writes_the_report(
    forest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compare", str(forest), *flags(), "--seeds", "1", "-o", str(tmp_path / "cmp")])
    out = capsys.readouterr().out
    assert "Too few images to be sure: " in out
    assert f"next: polycov train {forest} --probe" in out
    assert "a quarter of the bytes as int8" in " ".join(out.split())
    assert "report.html" in out
    for file in ("report.html", "tables/comparison.csv", "tables/comparison.tex", "figures/accuracy-dimensions.svg"):
        assert (tmp_path / "cmp" / file).stat().st_size > 500, file
    table = (tmp_path / "cmp" / "tables" / "comparison.csv").read_text().splitlines()
    assert len(table) == 1 + 8
    config = json.loads((tmp_path / "cmp" / "config.json").read_text())
    assert config["counts"] == {"train": 30, "val": 6, "test": 18}
    assert config["command"].startswith(f"polycov compare {forest} --methods average isqrt-cov")
    main(["report", str(tmp_path / "cmp"), "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "report.html").is_file()


def test_long_work_reports_lines_without_a_terminal(forest: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    compare(forest, out=tmp_path / "cmp", seeds=1, progress=LogProgress(lines.append, seconds=0.0), **TINY)
    assert any(line.startswith("extracting features with test_resnet: ") for line in lines)
    assert any("settings: 8 of 8" in line for line in lines)
    assert any("ipccp-ts, 16, seed 0: test" in line for line in lines)


def test_a_mistake_ends_in_one_sentence(forest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fails("compare", "nowhere").startswith("polycov: There is no folder 'nowhere'")
    write_classes(tmp_path / "one", ["alone"], 4)
    assert "Expected at least two classes" in fails("compare", "one")
    write_classes(tmp_path / "text", ["a", "b"], 4)
    (tmp_path / "text" / "a" / "x.jpg").write_text("not an image")
    assert "1 of 9 images is unreadable: a/x.jpg" in fails("compare", "text")
    assert "Expected seeds to be at least 1" in fails("compare", forest, "--seeds", "0")
    assert "Expected channels to be at least 1" in fails("compare", forest, *flags(channels=-3))
    assert "from 8 to 4096" in fails("compare", forest, *flags(size=0))
    assert "is chosen on validation images" in fails("compare", forest, *flags(), "--val-fraction", "0")
    assert "of 2000000000 dimensions take 3814.7GB, but only" in fails("compare", forest, *flags(dims=(2000000000,)))
    alone = fails("compare", forest, *flags(methods=("fewer-channels",), dims=(4096,)))
    assert alone == "polycov: There is nothing to compare: choose --dims below 78, or other --methods."
    assert "is not a comparison" in fails("report", forest)


def test_a_folder_holds_one_comparison_and_keeps_it_on_a_full_disk(
    forest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(forest, out=tmp_path / "cmp", seeds=1, **TINY)
    with pytest.raises(PolycovError, match=r"holds a comparison with channels 12, not 10\. Choose another --out"):
        compare(forest, out=tmp_path / "cmp", seeds=1, **{**TINY, "channels": 10})
    before = results(tmp_path / "cmp")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("polycov.comparing.comparison_folder.append_json_lines", full)
    stopped = stop("compare", forest, *flags(), "--seeds", "2", "--out", tmp_path / "cmp")
    assert stopped == (1, "polycov: [Errno 28] No space left on device")
    assert results(tmp_path / "cmp") == before


def test_changed_images_are_not_mixed_with_earlier_records(tmp_path: Path) -> None:
    data = write_data(tmp_path / "trees", train=8, test=4)
    options = {**TINY, "seeds": 1, "out": tmp_path / "cmp"}
    compare(data, **{**options, "methods": ("average",)})
    compare(data, **{**options, "methods": ("gem",), "val_fraction": 0.20})
    some = next((data / "test").rglob("*.jpg"))
    some.write_bytes(next((data / "train").rglob("*.jpg")).read_bytes())
    with pytest.raises(PolycovError, match="holds a comparison with other images"):
        compare(data, **{**options, "methods": ("isqrt-cov",)})
    assert {key[0] for key in results(tmp_path / "cmp")} == {"average", "gem"}

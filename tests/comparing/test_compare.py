"""Whole comparisons, from Python and as a user runs them."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command_line import fails, stop
from fake_images import make_image, write_classes, write_data
from polycov.commands.main import main
from polycov.comparing.compare import compare
from polycov.comparing.comparison import Comparison
from polycov.comparing.grid import SettingKey
from polycov.data import read_data
from polycov.data.unseen import hold_out_classes
from polycov.errors import PolycovError
from polycov.progress import LogProgress
from polycov.system.json_files import read_json_lines
from polycov.training.run_folder import RunFolder, load_run

TINY: dict[str, Any] = {
    "backbone": "test_resnet",
    "weights": "none",
    "size": 64,
    "stage": 2,
    "channels": 12,
    "workers": 0,
    "methods": ("average", "isqrt-cov", "fewer-channels", "ipccp-ts", "ipccp-fit"),
    "dims": (8, 16),
}


def flags(**changes: Any) -> list[str]:
    words: list[str] = []
    for name, value in {**TINY, **changes}.items():
        words += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "trees", train=12, test=6)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCOV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def results(folder: Path) -> dict[SettingKey, tuple[str, str]]:
    rows = list(read_json_lines(folder / "records.jsonl"))
    found = {(row["method"], row["dim"], row["seed"]): row["measurement"] for row in rows}
    assert len(found) == len(rows)  # no duplicates
    return {key: (measured["test_correct"], measured["val_correct"]) for key, measured in found.items()}


def test_a_comparison_is_complete_and_can_be_extended(trees: Path, tmp_path: Path) -> None:
    first = compare(trees, out=tmp_path / "cmp", seeds=1, **TINY)
    assert len(first.records) == 8
    before = results(tmp_path / "cmp")
    both = compare(trees, out=tmp_path / "cmp", seeds=2, **TINY)  # only the second seed remains to be measured
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
        f"polycov train {trees} --probe --size 64 --backbone test_resnet --weights none"
    )
    assert both.next_command.endswith(" ".join(both.recommendation.train_flags()))


def test_a_comparison_on_reduced_features_has_the_same_first_order_results(trees: Path, tmp_path: Path) -> None:
    few = {**TINY, "methods": ("average", "average-last", "isqrt-cov"), "explain": False}
    full = compare(trees, out=tmp_path / "full", seeds=1, **few)
    reduced = compare(trees, out=tmp_path / "reduced", seeds=1, store_channels=16, **few)
    assert [record.key for record in full.records] == [record.key for record in reduced.records]
    for method in ("average", "average-last"):
        assert results(tmp_path / "full")[method, None, 0] == results(tmp_path / "reduced")[method, None, 0]
    assert {record.measurement.dimensions for record in full.records} == {
        record.measurement.dimensions for record in reduced.records
    }
    with pytest.raises(PolycovError, match="holds a comparison with store_channels 16, not None"):
        compare(trees, out=tmp_path / "reduced", seeds=1, **few)


def test_the_average_of_the_last_layer_is_that_of_the_last_stage(trees: Path, tmp_path: Path) -> None:
    few = {**TINY, "methods": ("average", "average-last"), "explain": False}
    compare(trees, out=tmp_path / "stage", seeds=1, **few)
    last = compare(trees, out=tmp_path / "last", seeds=1, **{**few, "stage": "last"})
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
    trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compare", str(trees), *flags(), "--seeds", "1", "-o", str(tmp_path / "cmp")])
    out = capsys.readouterr().out
    assert "Too few images to be sure: " in out
    assert f"next: polycov train {trees} --probe" in out
    assert "a quarter of the bytes as int8" in " ".join(out.split())
    assert "report.html" in out
    for file in ("report.html", "tables/comparison.csv", "tables/comparison.tex", "figures/accuracy-dimensions.svg"):
        assert (tmp_path / "cmp" / file).stat().st_size > 500, file
    table = (tmp_path / "cmp" / "tables" / "comparison.csv").read_text().splitlines()
    assert len(table) == 1 + 8
    config = json.loads((tmp_path / "cmp" / "config.json").read_text())
    assert config["counts"] == {"train": 30, "val": 6, "test": 18}
    assert config["command"].startswith(f"polycov compare {trees} --methods average isqrt-cov")
    main(["report", str(tmp_path / "cmp"), "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "report.html").is_file()


@pytest.mark.parametrize("head", ["knn", "fewshot", "retrieval"])
def test_heads_that_train_nothing(trees: Path, tmp_path: Path, head: str) -> None:
    options = {**TINY, "methods": ("average", "ipccp-fit"), "dims": (8,), "head": head, "out": tmp_path / "cmp"}
    options |= {"ways": 3, "shots": 2, "episodes": 20}
    first = compare(trees, seeds=1, **options)
    before = results(tmp_path / "cmp")
    both = compare(trees, seeds=2, **options)
    assert {key: results(tmp_path / "cmp")[key] for key in before} == before
    assert (len(first.records), len(both.records)) == (2, 4)
    for record in both.records:
        measured = record.measurement
        assert measured.test_images == (20 if head == "fewshot" else 18)
        assert 0 < measured.test_accuracy <= 1
        assert measured.stored is not None
        assert measured.stored["float16"] == pytest.approx(measured.test_accuracy, abs=0.06)
        assert (measured.neighbours is not None) == (head != "fewshot")
    texts = [str(both), both.report().read_text(), (tmp_path / "cmp" / "tables" / "comparison.csv").read_text()]
    expected = {"knn": "test images", "fewshot": "test episodes", "retrieval": "recall@1 of"}[head]
    assert expected in texts[0]
    words = {"knn": "nearest neighbours", "fewshot": "3-way 2-shot", "retrieval": "ranked by cosine"}[head]
    assert words in texts[1]
    if head == "fewshot":
        assert all(point.interval is not None for point in both.points)
        with pytest.raises(PolycovError, match="holds a comparison with shots 2, not 1"):
            compare(trees, seeds=1, **{**options, "shots": 1})
    if head == "retrieval":
        assert set(both.study.metrics) == {"recall@10", "mAP", "k-NN"}
        assert "recall@10_standard_error" in texts[2]


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven classes, of which three or four are held out."""
    folder = tmp_path_factory.mktemp("seven") / "trees"
    write_classes(folder, list("abcdefg"), 6)
    return folder


def test_unseen_classes_are_held_out_from_every_fit(seven: Path, tmp_path: Path) -> None:
    few = {**TINY, "methods": ("ipccp-fit",), "dims": (4,), "seeds": 1, "head": "retrieval", "unseen_classes": 0.4}
    data = tmp_path / "changed"
    shutil.copytree(seven, data)
    before = compare(data, out=tmp_path / "one", **few)
    split = hold_out_classes(read_data(str(data)), 0.4, 0)
    seen, unseen = sorted(set(split["train"].labels)), sorted(set(split["test"].labels))

    def change(label: int) -> None:
        for i, path in enumerate(sorted((data / split.classes[label]).iterdir())):
            make_image(9, 50 + i).save(path)

    change(unseen[0])
    after = compare(data, out=tmp_path / "two", **few)
    change(seen[0])
    control = compare(data, out=tmp_path / "three", **few)
    fits = [comparison.records[0].measurement for comparison in (before, after, control)]
    assert fits[0].metrics != fits[1].metrics  # mAP, of the images that changed
    assert fits[0].val_correct == fits[1].val_correct
    assert fits[1].metrics != fits[2].metrics  # the same test images, another fit
    assert before.study.counts == {"train": 12, "val": 12, "test": 18}
    assert "40% of the classes" in before.report().read_text()


def test_a_probe_measures_retrieval_of_unseen_classes_beside_its_accuracy(seven: Path, tmp_path: Path) -> None:
    options = {**TINY, "methods": ("average", "ipccp-ts"), "dims": (8,), "seeds": 1}
    plain = compare(seven, out=tmp_path / "plain", **options)
    both = compare(seven, out=tmp_path / "both", unseen_classes=0.4, **options)
    alone = compare(seven, out=tmp_path / "alone", unseen_classes=0.4, head="retrieval", **options)
    assert {k: v[0] for k, v in results(tmp_path / "both").items()} == {
        k: v[0] for k, v in results(tmp_path / "plain").items()
    }
    for one, other in zip(both.records, alone.records, strict=True):
        assert one.measurement.metrics is not None
        assert other.measurement.metrics is not None
        assert one.measurement.metrics["unseen recall@1"] == other.measurement.test_accuracy
        assert one.measurement.metrics["unseen mAP"] == other.measurement.metrics["mAP"]
    assert plain.study.metrics == []
    assert "unseen recall@1" in both.report().read_text()
    assert (tmp_path / "both" / "figures" / "unseen-recall@1-dimensions.svg").is_file()
    with pytest.raises(PolycovError, match="--unseen-classes needs --head probe, knn, fewshot or retrieval, got train"):
        compare(seven, head="train", unseen_classes=0.4)


def test_long_work_reports_lines_without_a_terminal(trees: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    compare(trees, out=tmp_path / "cmp", seeds=1, progress=LogProgress(lines.append, seconds=0.0), **TINY)
    assert any(line.startswith("extracting features with test_resnet: ") for line in lines)
    assert any("settings: 8 of 8" in line for line in lines)
    assert any("ipccp-ts, 16, seed 0: test" in line for line in lines)


@pytest.mark.slow
def test_a_killed_comparison_resumes_and_jobs_share_it(trees: Path, tmp_path: Path) -> None:
    compare(trees, out=tmp_path / "whole", seeds=3, **TINY)
    broken = tmp_path / "broken"
    command = [sys.executable, "-m", "polycov", "compare", str(trees), *flags(), "--seeds", "3", "--out", str(broken)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(results(broken)) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = results(broken)
    assert 5 <= len(done) < 24
    subprocess.run([*command, "--jobs", "2"], check=True, stdout=subprocess.DEVNULL, timeout=240)
    assert results(broken) == results(tmp_path / "whole")  # a random backbone is the same in every process


@pytest.mark.slow
@pytest.mark.parametrize("head", ["train", "finetune"])
def test_other_heads_train(trees: Path, tmp_path: Path, head: str) -> None:
    options = {**TINY, "methods": ("average", "ipccp-ts"), "dims": (16,), "seeds": 1, "epochs": 1, "head": head}
    comparison = compare(trees, out=tmp_path / "cmp", **options)
    assert set(results(tmp_path / "cmp")) == {("average", None, 0), ("ipccp-ts", 16, 0)}
    assert all(record.measurement.pool_ms > 0 for record in comparison.records)
    assert (tmp_path / "cmp" / "runs" / "ipccp-ts_16_0" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_processes_of_accelerate_launch_share_a_comparison(trees: Path, tmp_path: Path) -> None:
    options = flags(methods=("average", "gem", "ipccp-ts"), seeds=1, epochs=1, head="train", out=tmp_path / "cmp")
    launcher = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    launcher += ["--dynamo_backend", "no", "--main_process_port", "0", "-m", "polycov"]
    command = [sys.executable, "-m", "accelerate.commands.launch", *launcher, "compare", str(trees), *options]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(results(tmp_path / "cmp")) == 4
    assert done.stdout.count("report.html") == 1  # one of them speaks


def test_a_mistake_ends_in_one_sentence(trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fails("compare", "nowhere").startswith("polycov: There is no folder 'nowhere'")
    write_classes(tmp_path / "one", ["alone"], 4)
    assert "Expected at least two classes" in fails("compare", "one")
    write_classes(tmp_path / "text", ["a", "b"], 4)
    (tmp_path / "text" / "a" / "x.jpg").write_text("not an image")
    assert "1 of 9 images is unreadable: a/x.jpg" in fails("compare", "text")
    assert "Expected seeds to be at least 1" in fails("compare", trees, "--seeds", "0")
    assert "Expected channels to be at least 1" in fails("compare", trees, *flags(channels=-3))
    assert "from 8 to 4096" in fails("compare", trees, *flags(size=0))
    assert "is chosen on validation images" in fails("compare", trees, *flags(), "--val-fraction", "0")
    assert "of 2000000000 dimensions take 3814.7GB, and there" in fails("compare", trees, *flags(dims=(2000000000,)))
    alone = fails("compare", trees, *flags(methods=("fewer-channels",), dims=(4096,)))
    assert alone == "polycov: There is nothing to compare: choose --dims below 78, or other --methods."
    assert "is not a comparison" in fails("report", trees)


def test_a_folder_holds_one_comparison_and_keeps_it_on_a_full_disk(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(trees, out=tmp_path / "cmp", seeds=1, **TINY)
    with pytest.raises(PolycovError, match=r"holds a comparison with channels 12, not 10\. Choose another --out"):
        compare(trees, out=tmp_path / "cmp", seeds=1, **{**TINY, "channels": 10})
    before = results(tmp_path / "cmp")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("polycov.comparing.comparison_folder.append_json_lines", full)
    stopped = stop("compare", trees, *flags(), "--seeds", "2", "--out", tmp_path / "cmp")
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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_the_first_process_stops_its_helpers(trees: Path, tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "polycov", "compare", str(trees), *flags(), "--seeds", "400", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "cmp")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while len(results(tmp_path / "cmp")) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    where = tmp_path / "cmp"
    sentence = f"polycov: stopped. Run the same command again to resume the comparison in {where}."
    assert (process.returncode, errors.decode().strip()) == (130, sentence)
    done = len(results(tmp_path / "cmp"))
    time.sleep(1.0)
    assert 5 <= len(results(tmp_path / "cmp")) == done < 3200


def compare_with_messages(data: Path, out: Path, **changes: Any) -> tuple[Comparison, list[str]]:
    lines: list[str] = []
    options = {**TINY, "seeds": 1, "progress": LogProgress(lines.append), **changes}
    return compare(data, out=out, **options), lines


def test_the_backbone_limits_the_channels_and_few_images_the_components(tmp_path: Path) -> None:
    data = write_data(tmp_path / "trees", train=3, test=2)
    options = {"channels": None, "methods": ("isqrt-cov", "fewer-channels", "ipccp-fit"), "dims": (10, 2000, 3000)}
    comparison, lines = compare_with_messages(data, tmp_path / "cmp", **options)
    expected = {("isqrt-cov", None, 0), ("fewer-channels", 10, 0), ("ipccp-fit", 6, 0)}
    assert set(results(tmp_path / "cmp")) == expected
    assert {point.method: point.dimensions for point in comparison.points} == {
        "isqrt-cov": 1176,
        "fewer-channels": 10,
        "ipccp-fit": 6,  # two training images in each of three classes
    }
    assert lines[:2] == [
        "data: trees, 3 classes, images: 6 train, 3 val, 6 test",
        "note: 3 of 9 images held out for validation: about 20% of each class, seed 0",
    ]
    notes = "\n".join(lines)
    assert "note: fewer-channels at 2000, 3000: skipped, since on all 48 channels (1176 dimensions) it is" in notes
    assert "note: ipccp-fit at 10, 2000, 3000: measured at 6 dimensions, as many as the smallest training sp" in notes
    again, _ = compare_with_messages(data, tmp_path / "cmp", **{**options, "dims": (6, 10)})  # 6 is known already
    assert set(results(tmp_path / "cmp")) == expected | {("fewer-channels", 6, 0)}
    assert len(again.records) == 4


def test_very_few_local_features_limit_the_channels(tmp_path: Path) -> None:
    data = write_data(tmp_path / "trees", train=2, test=1)
    options = {"stage": "last", "channels": 48, "methods": ("average", "isqrt-cov")}
    comparison, lines = compare_with_messages(data, tmp_path / "cmp", **options)
    assert any(
        "note: 12 channels before second-order pools, not 48: 3 training images have no more" in x for x in lines
    )
    assert {record.method: record.measurement.channels for record in comparison.records}["isqrt-cov"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("head", ["train", "finetune"])
def test_trained_heads_reduce_fitted_sizes_too(tmp_path: Path, head: str) -> None:
    data = write_data(tmp_path / "trees", train=3, test=2)
    options = {"methods": ("ipccp-fit",), "dims": (512, 1024), "epochs": 1, "head": head}
    comparison, _ = compare_with_messages(data, tmp_path / "cmp", **options)
    (record,) = comparison.records
    assert record.key == ("ipccp-fit", 6, 0)
    assert record.measurement.dimensions == 6


SMALL_FOLDERS = {  # images per class → images in training, validation and test
    "three per class": ((3, 3, 3), [3, 3, 3]),
    "two classes": ((8, 8), [10, 2, 4]),
    "uneven": ((20, 4, 1), [14, 4, 7]),
}


@pytest.mark.parametrize("name", SMALL_FOLDERS)
def test_small_folders_end_with_a_table(tmp_path: Path, name: str) -> None:
    counts, expected = SMALL_FOLDERS[name]
    for label, count in zip(("ash", "birch", "cedar"), counts, strict=False):
        write_classes(tmp_path / "x", [label], count)
    comparison, _ = compare_with_messages(tmp_path / "x", tmp_path / "cmp")
    assert list(comparison.study.counts.values()) == expected
    samples = expected[0]
    assert ("ipccp-fit", min(samples, 16)) in {point.key for point in comparison.points}
    assert f"accuracy on {expected[2]} test images" in comparison.table().title
    assert "Too few images to be sure" in str(comparison.recommendation)
    assert comparison.report().is_file()


def test_two_images_per_class_are_too_few(tmp_path: Path) -> None:
    write_classes(tmp_path / "x", ["ash", "birch"], 2)
    message = "There are no validation images in 'x', .* Add images, at least 3 per class"
    with pytest.raises(PolycovError, match=message):
        compare(tmp_path / "x", out=tmp_path / "cmp", **TINY)

"""Comparisons by heads other than the probe, and on classes that no fit has seen."""

import shutil
from pathlib import Path

import pytest

from fake_images import make_image, write_classes, write_data
from polycov.comparing.compare import compare
from polycov.data import read_data
from polycov.data.unseen import hold_out_classes
from polycov.errors import PolycovError
from small_comparison import TINY, compare_with_messages, results


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven classes, of which three or four are held out."""
    folder = tmp_path_factory.mktemp("seven") / "trees"
    write_classes(folder, list("abcdefg"), 6)
    return folder


@pytest.mark.parametrize("head", ["knn", "fewshot", "retrieval"])
def test_heads_that_train_nothing(forest: Path, tmp_path: Path, head: str) -> None:
    options = {**TINY, "methods": ("average", "ipccp-fit"), "dims": (8,), "head": head, "out": tmp_path / "cmp"}
    options |= {"ways": 3, "shots": 2, "episodes": 20}
    first = compare(forest, seeds=1, **options)
    before = results(tmp_path / "cmp")
    both = compare(forest, seeds=2, **options)
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
            compare(forest, seeds=1, **{**options, "shots": 1})
    if head == "retrieval":
        assert set(both.study.metrics) == {"recall@10", "mAP", "k-NN"}
        assert "recall@10_standard_error" in texts[2]


@pytest.mark.slow
@pytest.mark.parametrize("head", ["train", "finetune"])
def test_other_heads_train(forest: Path, tmp_path: Path, head: str) -> None:
    options = {**TINY, "methods": ("average", "ipccp-ts"), "dims": (16,), "seeds": 1, "epochs": 1, "head": head}
    comparison = compare(forest, out=tmp_path / "cmp", **options)
    assert set(results(tmp_path / "cmp")) == {("average", None, 0), ("ipccp-ts", 16, 0)}
    assert all(record.measurement.pool_ms > 0 for record in comparison.records)
    assert (tmp_path / "cmp" / "runs" / "ipccp-ts_16_0" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("head", ["train", "finetune"])
def test_trained_heads_reduce_fitted_sizes_too(tmp_path: Path, head: str) -> None:
    data = write_data(tmp_path / "trees", train=3, test=2)
    options = {"methods": ("ipccp-fit",), "dims": (512, 1024), "epochs": 1, "head": head}
    comparison, _ = compare_with_messages(data, tmp_path / "cmp", **options)
    (record,) = comparison.records
    assert record.key == ("ipccp-fit", 6, 0)
    assert record.measurement.dimensions == 6


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

"""Comparisons on very few images, which limit channels and dimensions."""

from pathlib import Path

import pytest

from fake_images import write_classes, write_data
from polycov.comparing.compare import compare
from polycov.errors import PolycovError
from small_comparison import TINY, compare_with_messages, results


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

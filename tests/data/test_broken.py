from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fake_images import make_image, write_classes, write_data
from polycov.data import Samples, read_data
from polycov.data.broken import exclude_broken, find_broken
from polycov.data.images import require_trainable
from polycov.errors import PolycovError
from polycov.progress import LogProgress


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    return write_data(tmp_path / "trees")


def names(samples: Samples) -> set[str]:
    return {samples.name(i) for i in range(len(samples))}


def break_two(trees: Path) -> set[str]:
    (trees / "train" / "ash" / "text.jpg").write_text("not an image")
    content = (trees / "train" / "ash" / "000.jpg").read_bytes()
    (trees / "train" / "birch" / "truncated.jpg").write_bytes(content[: len(content) // 2])
    return {"train/ash/text.jpg", "train/birch/truncated.jpg"}


def test_broken_images_stop_with_their_names(trees: Path, tmp_path: Path) -> None:
    break_two(trees)
    data = read_data(str(trees), val_fraction=0)
    unreadable = find_broken(data, tmp_path)
    assert unreadable["train/ash/text.jpg"] == "it is not an image"
    message = r"^2 of 44 images are unreadable: train/ash/text.jpg \(not an image\); .*\. Remove them.*broken skip \(in"
    with pytest.raises(PolycovError, match=message):
        exclude_broken(data, unreadable, "stop")


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_broken_images_are_skipped_and_reported(trees: Path, tmp_path: Path, workers: int) -> None:
    broken = break_two(trees)
    data = read_data(str(trees), val_fraction=0)
    lines: list[str] = []
    unreadable = find_broken(data, tmp_path, workers=workers)
    kept = exclude_broken(data, unreadable, "skip", LogProgress(lines.append))
    assert names(data["train"]) - names(kept["train"]) == broken
    assert len(lines) == 1
    assert lines[0].startswith("skipped: 2 of 44 images are unreadable: train/ash/text.jpg (")


def test_data_without_broken_images_is_returned_as_it_is(trees: Path, tmp_path: Path) -> None:
    data = read_data(str(trees), val_fraction=0)
    assert find_broken(data, tmp_path) == {}
    assert exclude_broken(data, {}, "stop") is data


def test_results_are_cached_until_an_image_changes(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = break_two(trees)
    before = find_broken(read_data(str(trees), val_fraction=0), tmp_path)
    (file,) = (tmp_path / "checked").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr("polycov.data.images.read_image", pytest.fail)
        assert find_broken(read_data(str(trees), val_fraction=0.5), tmp_path) == before  # split differently
    make_image(0, 1).save(trees / "train" / "ash" / "text.jpg")
    assert set(find_broken(read_data(str(trees), val_fraction=0), tmp_path)) == broken - {"train/ash/text.jpg"}
    file.write_text("damaged")
    (trees / "train" / "ash" / "text.jpg").unlink()
    assert set(find_broken(read_data(str(trees), val_fraction=0), tmp_path)) == broken - {"train/ash/text.jpg"}


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"train/ash/000.jpg": "ValueError: "}'])
def test_a_damaged_or_older_cache_is_recomputed(trees: Path, tmp_path: Path, content: str) -> None:
    data = read_data(str(trees), val_fraction=0)
    find_broken(data, tmp_path)
    (file,) = (tmp_path / "checked").iterdir()
    file.write_text(content)
    assert find_broken(data, tmp_path) == {}


def test_reasons_that_can_be_repaired_are_not_cached(trees: Path, tmp_path: Path) -> None:
    link = trees / "train" / "ash" / "link.jpg"
    link.symlink_to(tmp_path / "later.jpg")
    data = read_data(str(trees), val_fraction=0)
    assert list(find_broken(data, tmp_path)) == ["train/ash/link.jpg"]
    assert not (tmp_path / "checked").exists()
    make_image(0, 5).save(tmp_path / "later.jpg")
    assert find_broken(read_data(str(trees), val_fraction=0), tmp_path) == {}


def test_images_that_can_be_opened_but_not_converted_are_broken_too(trees: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 1e6, dtype=np.float32)).save(trees / "train" / "ash" / "large.tiff")
    unreadable = find_broken(read_data(str(trees), val_fraction=0), tmp_path)
    assert unreadable == {"train/ash/large.tiff": "expected values from 0 to 255, got 1e+06 to 1e+06"}


def test_images_that_are_always_readable_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polycov.data.images.read_image", pytest.fail)
    assert find_broken(read_data("typefaces"), tmp_path) == {}


def test_a_class_with_only_broken_images_is_named(tmp_path: Path) -> None:
    write_classes(tmp_path / "x", ["a", "b"], 4)
    (tmp_path / "x" / "c").mkdir()
    (tmp_path / "x" / "c" / "1.png").write_text("not an image")
    data = read_data(str(tmp_path / "x"), test_fraction=0.3, val_fraction=0)
    with pytest.raises(PolycovError, match="There are no training images of 'c'"):
        require_trainable(exclude_broken(data, find_broken(data, tmp_path), "skip"))

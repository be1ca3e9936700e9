import os
from collections import Counter
from pathlib import Path

import pytest

from fake_images import make_image, write_classes, write_data
from polycov.data import ImageData, Samples, read_data
from polycov.data.images import Files, hold_out, join, require_trainable, require_validation
from polycov.errors import PolycovError


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    return write_data(tmp_path / "trees")


def names(samples: Samples) -> set[str]:
    return {samples.name(i) for i in range(len(samples))}


def test_held_out_images_are_a_fraction_of_each_class_and_reproducible() -> None:
    samples = Samples(Files(Path()), [f"{c}/{i}" for c in "ab" for i in range(20)], [0] * 20 + [1] * 20)
    remaining, held_out = hold_out(samples, 0.25, seed=3)
    assert Counter(held_out.labels) == {0: 5, 1: 5}
    assert names(remaining) | names(held_out) == names(samples)
    assert not names(remaining) & names(held_out)
    reordered = samples.select(reversed(range(40)))
    assert names(hold_out(reordered, 0.25, seed=3)[1]) == names(held_out)  # the order on disk does not matter
    assert names(hold_out(samples, 0.25, seed=4)[1]) != names(held_out)


def test_held_out_images_are_those_of_earlier_versions() -> None:
    samples = Samples(Files(Path()), [f"{c}/{i}" for c in "ab" for i in range(6)], [0] * 6 + [1] * 6)
    assert hold_out(samples, 0.4, seed=3)[1].items == ["a/0", "a/4", "b/0", "b/1"]


def test_every_class_keeps_a_training_image() -> None:
    samples = Samples(Files(Path()), ["a", "b", "c"], [0, 1, 1])
    remaining, held_out = hold_out(samples, 0.9, seed=0)
    assert Counter(remaining.labels) == {0: 1, 1: 1}
    assert Counter(held_out.labels) == {1: 1}


def test_fingerprints_tell_splits_and_images_apart(trees: Path) -> None:
    data, other_split = read_data(str(trees), split_seed=0), read_data(str(trees), split_seed=1)
    assert data.fingerprint() != other_split.fingerprint()
    before = data.fingerprint(stamps=True)
    assert before == other_split.fingerprint(stamps=True)  # the same images
    make_image(2, 999).save(trees / "test" / "cedar" / "010.jpg")
    assert read_data(str(trees)).fingerprint() == data.fingerprint()
    assert read_data(str(trees)).fingerprint(stamps=True) != before


def test_all_samples_are_in_the_order_of_their_names(trees: Path) -> None:
    data = read_data(str(trees))
    samples = data.all_samples()
    ordered = [samples.name(i) for i in range(len(samples))]
    assert ordered == sorted(set().union(*(names(split) for split in data.splits.values())))
    assert len(ordered) == 42
    assert all(data.classes[samples.labels[i]] in name for i, name in enumerate(ordered))


def test_joined_splits_and_excluded_names(trees: Path) -> None:
    data = read_data(str(trees))
    joined = join([data["train"], data["val"]])
    assert names(joined) == names(data["train"]) | names(data["val"])
    excluded = {data["train"].name(0), data["test"].name(1)}
    remaining = data.without(excluded)
    assert names(data.all_samples()) - names(remaining.all_samples()) == excluded


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    write_classes(tmp_path / "x", ["a", "b"], 4)
    name = os.fsdecode(b"caf\xe9.png")
    make_image(0, 9).save(tmp_path / "x" / "a" / "plain.png")
    (tmp_path / "x" / "a" / "plain.png").rename(tmp_path / "x" / "a" / name)
    data = read_data(str(tmp_path / "x"), val_fraction=0)
    assert f"a/{name}" in names(data.all_samples())
    assert len(data.fingerprint()) == len(data.fingerprint(stamps=True)) == 64


def make_data(classes: list[str], train: list[int], test: list[int]) -> ImageData:
    source = Files(Path())
    splits = {
        "train": Samples(source, [f"train/{i}" for i in range(len(train))], train),
        "val": Samples(source, [], []),
        "test": Samples(source, [f"test/{i}" for i in range(len(test))], test),
    }
    return ImageData("trees", classes, splits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (make_data(["ash"], [0], [0]), r"^Expected at least two classes in 'trees', got only 'ash': add images of "),
        (make_data(["Ash", "ash "], [0, 1], [0]), r"^Duplicate class names in 'trees': 'Ash', 'ash '\. Rename them\.$"),
        (make_data(["ash", "oak"], [], [0]), r"^There are no train images in 'trees'\.$"),
        (make_data(["ash", "oak"], [0, 1], []), r"^There are no test images in 'trees'\.$"),
        (make_data(["ash", "oak"], [0, 0], [1]), r"^There are no training images of 'oak' in 'trees'\.$"),
    ],
)
def test_untrainable_data_is_refused(data: ImageData, message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        require_trainable(data)


def test_data_without_validation_images_is_refused_with_the_reason(trees: Path) -> None:
    with pytest.raises(PolycovError, match=r"^Everything is chosen on validation images: expected --val-fraction abo"):
        require_validation(read_data(trees, val_fraction=0))
    message = r"^There are no validation images in 'trees', .*: no class has a second training image to hold out\. Add"
    with pytest.raises(PolycovError, match=message):
        require_validation(make_data(["ash", "oak"], [0, 1], [1]))
    data = read_data(trees)
    assert require_validation(data) is data


def test_trainable_data_is_returned() -> None:
    data = make_data(["ash", "oak"], [0, 1], [1])
    assert require_trainable(data) is data

from pathlib import Path

import pytest

from fake_images import make_image, write_classes, write_data
from polycov.data import ImageData, read_data
from polycov.data.images import Files, Samples, Split
from polycov.data.read import read_splits, report_data, split_data
from polycov.errors import PolycovError
from polycov.progress import LogProgress


def names(data: ImageData, split: Split) -> set[str]:
    return {data[split].name(i) for i in range(len(data[split]))}


def counts(data: ImageData) -> list[int]:
    assert list(data.splits) == ["train", "val", "test"]
    return [len(samples) for samples in data.splits.values()]


def test_validation_is_held_out_of_training_and_the_test_split_is_kept(tmp_path: Path) -> None:
    write_data(tmp_path)
    data = read_data(tmp_path, val_fraction=0.2)
    assert counts(data) == [24, 6, 12]
    assert all(name.startswith("test/") for name in names(data, "test"))
    assert not names(data, "train") & names(data, "val")
    assert counts(read_data(tmp_path, val_fraction=0)) == [30, 0, 12]


def test_a_val_split_is_for_validation_or_else_for_testing(tmp_path: Path) -> None:
    write_data(tmp_path)
    write_classes(tmp_path / "val", ["ash", "birch", "cedar"], 2, first=50)
    both = read_data(tmp_path)
    assert all(name.startswith("val/") for name in names(both, "val"))
    assert counts(both) == [30, 6, 12]
    joined = read_data(tmp_path, val_fraction=0)
    assert counts(joined) == [36, 0, 12]
    assert joined.notes == ["the val split is used for training too"]
    (tmp_path / "test").rename(tmp_path / "other")
    only_val = read_data(tmp_path)
    assert all(name.startswith("val/") for name in names(only_val, "test"))
    assert all(name.startswith("train/") for name in names(only_val, "val"))
    assert only_val.notes[0] == "the val split is used for testing"


def test_data_without_splits_is_split_by_seed(tmp_path: Path) -> None:
    write_classes(tmp_path, ["ash", "birch"], 10)
    data = read_data(tmp_path, val_fraction=0, test_fraction=0.3)
    assert counts(data) == [14, 0, 6]
    assert data.fingerprint() == read_data(tmp_path, val_fraction=0, test_fraction=0.3).fingerprint()
    assert data.fingerprint() != read_data(tmp_path, val_fraction=0, test_fraction=0.3, split_seed=1).fingerprint()


def test_the_validation_seed_leaves_the_test_split_alone(tmp_path: Path) -> None:
    write_classes(tmp_path, ["ash", "birch"], 10)
    data, other = read_data(tmp_path), read_data(tmp_path, val_seed=5)
    assert names(data, "test") == names(other, "test")
    assert names(data, "val") != names(other, "val")
    assert data.notes[-1] == "2 of 14 images held out for validation: about 20% of each class, seed 0"
    assert other.notes[-1] == "2 of 14 images held out for validation: about 20% of each class, seed 5"
    assert read_data(tmp_path, split_seed=4).fingerprint() != data.fingerprint()


def test_notes_on_tiny_classes_say_what_was_held_out(tmp_path: Path) -> None:
    write_classes(tmp_path, ["ash", "birch"], 3)
    assert read_data(tmp_path, test_fraction=0.1).notes[:2] == [
        "2 of 6 images held out for testing: about 10% of each class, at least one image, seed 0",
        "2 of 4 images held out for validation: about 20% of each class, at least one image, seed 0",
    ]


def test_a_similar_folder_is_suggested(tmp_path: Path) -> None:
    write_classes(tmp_path / "birds", ["ash", "birch"], 3)
    with pytest.raises(PolycovError, match=r"There is no folder '.*bird'\. Did you mean '.*birds'\?$"):
        read_data(tmp_path / "bird")


def test_data_read_once_can_be_split_many_times(tmp_path: Path) -> None:
    write_classes(tmp_path, ["ash", "birch"], 10)
    whole = read_splits(tmp_path)
    assert list(whole.splits) == ["train"]
    for seed in (0, 1):
        data = split_data(whole, split_seed=seed, val_seed=3, val_fraction=0.5)
        assert data == read_data(tmp_path, split_seed=seed, val_seed=3, val_fraction=0.5)
    assert list(whole.splits) == ["train"]
    assert whole.notes == []


def test_splits_are_those_of_earlier_versions() -> None:
    items = [f"{c}/{i}" for c in "ab" for i in range(6)]
    whole = ImageData("x", ["a", "b"], {"train": Samples(Files(Path()), items, [0] * 6 + [1] * 6)})
    data = split_data(whole, split_seed=1, val_seed=2, val_fraction=0.3)
    assert {split: list(samples.items) for split, samples in data.splits.items()} == {
        "train": ["a/2", "a/3", "a/4", "b/3", "b/4", "b/5"],
        "val": ["a/0", "b/0"],
        "test": ["a/1", "a/5", "b/1", "b/2"],
    }


def test_data_without_training_images_is_refused(tmp_path: Path) -> None:
    write_classes(tmp_path / "test", ["ash", "birch"], 2)
    with pytest.raises(PolycovError, match=r"^There are no training images in '.*', only a test split\. Expected"):
        read_data(tmp_path)
    empty = ImageData("nothing", ["a", "b"], {"train": Samples(Files(tmp_path), [], [])})
    with pytest.raises(PolycovError, match=r"^There are no training images in 'nothing'\. Expected train/"):
        split_data(empty)
    with pytest.raises(PolycovError, match=r"^There are no training images in 'path/of/it'\. Expected"):
        split_data(empty, source_name="path/of/it")


def test_data_without_a_test_split_needs_a_fraction(tmp_path: Path) -> None:
    write_classes(tmp_path, ["ash", "birch"], 4)
    with pytest.raises(PolycovError, match=r"has no test split: expected test_fraction above 0\.$"):
        read_data(tmp_path, test_fraction=0)


def write_one_class(root: Path) -> None:
    write_classes(root, ["alone"], 4)


def write_same_names(root: Path) -> None:
    write_classes(root, ["Robin", "robin "], 4)


def write_unknown_test_class(root: Path) -> None:
    write_classes(root / "train", ["a", "b"], 2)
    write_classes(root / "test", ["a", "z"], 2)


def write_no_classes_below_train(root: Path) -> None:
    for split in ("train", "test"):
        (root / split).mkdir(parents=True)
        make_image(0, 0).save(root / split / "1.jpg")


def write_loose_images(root: Path) -> None:
    root.mkdir(exist_ok=True)
    make_image(0, 0).save(root / "1.jpg")


def write_wrapped_classes(root: Path) -> None:
    write_classes(root / "images", ["a", "b"], 4)


def write_one_image_per_class(root: Path) -> None:
    write_classes(root, ["a", "b"], 1)


MISTAKES = {
    "one class": (
        write_one_class,
        "Expected at least two classes in 'x', got only 'alone': add images of another",
    ),
    "one folder more": (
        write_wrapped_classes,
        "got only 'images': if the folders in it, 'a', 'b', .* '.*x/images'",
    ),
    "same names": (write_same_names, "Duplicate class names in .*: 'Robin', 'robin '"),
    "unknown test class": (write_unknown_test_class, "x/test' has classes without training images: 'z'"),
    "no classes below train": (write_no_classes_below_train, "x/train' are not in class folders. Expected train/CLASS"),
    "loose images": (write_loose_images, "x' has images .1. but no class folders"),
    "one image per class": (write_one_image_per_class, "none can be held out: every class has one image. Add images"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_untrainable_data_is_refused(tmp_path: Path, mistake: str) -> None:
    write, message = MISTAKES[mistake]
    write(tmp_path / "x")
    with pytest.raises(PolycovError, match=message):
        read_data(tmp_path / "x")


def test_tar_shards_are_expected_after_their_prefix(tmp_path: Path) -> None:
    write_classes(tmp_path, ["a", "b"], 2)
    with pytest.raises(PolycovError, match=r"^There are no tar files in '.*'\. Class folders need no 'wds/'"):
        read_data(f"wds/{tmp_path}")


def test_two_images_per_class_leave_none_for_validation(tmp_path: Path) -> None:
    write_classes(tmp_path, ["ash", "birch"], 2)
    data = read_data(tmp_path)
    assert counts(data) == [2, 0, 2]
    assert data.notes[-1] == "no class has a second training image to hold out for validation"
    write_classes(tmp_path, ["ash", "birch"], 3)
    assert counts(read_data(tmp_path)) == [2, 2, 2]


def test_uneven_classes_are_noted(tmp_path: Path) -> None:
    for name, count in (("ash", 20), ("birch", 5), ("cedar", 1)):
        write_classes(tmp_path, [name], count)
    notes = read_data(tmp_path).notes
    assert notes[-2:] == [
        "there are no test images of 'cedar' (1 of 3 classes)",
        "75% of the test images are 'ash': always answering 'ash' is that accurate",  # 6 of 8
    ]
    write_classes(tmp_path, ["birch"], 19)
    assert not any("always answering" in note for note in read_data(tmp_path).notes)


def test_what_was_read_is_reported(tmp_path: Path) -> None:
    lines: list[str] = []
    data = read_data(write_data(tmp_path / "trees"))
    report_data(data, LogProgress(lines.append))
    assert lines == [
        "data: trees, 3 classes, images: 24 train, 6 val, 12 test",
        "note: 6 of 30 images held out for validation: about 20% of each class, seed 0",
    ]


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    make_image(0, 0).save(tmp_path / "1.jpg")
    with pytest.raises(PolycovError, match=r"^Expected a folder of class folders, got the file '.*1\.jpg'\.$"):
        read_data(tmp_path / "1.jpg")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("typeface", "There is no folder 'typeface'. Did you mean 'typefaces'"),
        ("no/where", "There is no folder 'no/where'. Expected a folder with a folder of images per class, hfds/NAME, "),
        ("tfds/cifar10", "tfds data has no random access. Write 'tfds/cifar10' to class folders first"),
    ],
)
def test_missing_data_is_named(data: str, message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        read_data(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_fraction": 1.0}, "Expected val_fraction from 0 to below 1, got 1.0"),
        ({"test_fraction": 1.0}, "Expected test_fraction from 0 to below 1, got 1.0"),
        ({"split_seed": -1}, "Expected split_seed from 0 to 2⁶³ − 1, got -1"),
        ({"val_seed": 2**63}, "Expected val_seed from 0 to 2⁶³ − 1, got 9223372036854775808"),
    ],
)
def test_invalid_options_are_refused_before_reading(options: dict[str, float], message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        read_data("does/not/exist", **options)  # type: ignore[arg-type]
    whole = ImageData("x", ["a", "b"], {"train": Samples(Files(Path()), ["1", "2"], [0, 1])})
    with pytest.raises(PolycovError, match=message):
        split_data(whole, **options)  # type: ignore[arg-type]

from pathlib import Path

import pytest

from fake_images import make_image, write_classes, write_data
from polycov.data.images import ImageData, Split
from polycov.data.read import read_splits
from polycov.errors import PolycovError


def labels_by_name(data: ImageData, split: Split) -> dict[str, str]:
    samples = data[split]
    return {samples.name(i): data.classes[samples.labels[i]] for i in range(len(samples))}


def test_class_folders_below_train_and_test(tmp_path: Path) -> None:
    data = read_splits(write_data(tmp_path))
    assert list(data.splits) == ["train", "test"]
    assert data.classes == ["ash", "birch", "cedar"]
    assert labels_by_name(data, "test")["test/cedar/011.jpg"] == "cedar"
    assert data["train"].image(0).size == (40, 40)


@pytest.mark.parametrize(("train", "val"), [("Train", "valid"), ("training", "VALIDATION")])
def test_other_names_of_splits(tmp_path: Path, train: str, val: str) -> None:
    write_classes(tmp_path / train, ["ash", "birch"], 2)
    write_classes(tmp_path / val, ["ash", "birch"], 1)
    data = read_splits(tmp_path)
    assert {split: len(samples) for split, samples in data.splits.items()} == {"train": 4, "val": 2}
    assert labels_by_name(data, "val")[f"{val}/birch/000.jpg"] == "birch"


def test_class_folders_alone_are_for_training(tmp_path: Path) -> None:
    write_classes(tmp_path, ["ash", "birch"], 3)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "empty").mkdir()
    data = read_splits(tmp_path)
    assert list(data.splits) == ["train"]
    assert data.classes == ["ash", "birch"]
    assert data.name == tmp_path.name


def test_images_beside_class_folders_are_skipped_with_a_note(tmp_path: Path) -> None:
    write_data(tmp_path)
    make_image(0, 0).save(tmp_path / "train" / "loose.jpg")
    data = read_splits(tmp_path)
    assert len(data["train"]) == 30
    assert data.notes == ["1 image is skipped: directly in 'train', not in a class folder"]


def test_links_in_a_circle_give_no_duplicates(tmp_path: Path) -> None:
    write_data(tmp_path)
    (tmp_path / "train" / "ash" / "loop").symlink_to(tmp_path)
    data = read_splits(tmp_path)
    assert len(data["train"]) == 30
    assert data.classes == ["ash", "birch", "cedar"]


def test_images_beside_class_folders_without_splits_are_skipped_with_a_note(tmp_path: Path) -> None:
    write_classes(tmp_path / "trees", ["ash", "birch"], 2)
    for i in range(2):
        make_image(0, i).save(tmp_path / "trees" / f"{i}.jpg")
    data = read_splits(tmp_path / "trees")
    assert len(data["train"]) == 4
    assert data.notes == ["2 images are skipped: directly in 'trees', not in a class folder"]


def test_images_in_folders_of_a_class_belong_to_it_with_a_note(tmp_path: Path) -> None:
    for name in ("ash", "birch"):
        write_classes(tmp_path / name, ["old", "young"], 2)
    data = read_splits(tmp_path)
    assert data.classes == ["ash", "birch"]
    assert labels_by_name(data, "train")["birch/young/001.jpg"] == "birch"
    (note,) = data.notes
    assert note == (
        "the classes are the folders 'ash', 'birch'; if they should be those inside, 'old', 'young', move these up one "
        "level"
    )
    make_image(0, 0).save(tmp_path / "ash" / "1.jpg")  # now the inner folders cannot be the classes
    assert read_splits(tmp_path).notes == []


def test_the_note_on_nested_folders_holds_below_train_too(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_classes(tmp_path / split / "broadleaf", ["ash", "birch"], 2)
        write_classes(tmp_path / split / "conifer", ["cedar"], 2)
    data = read_splits(tmp_path)
    assert data.classes == ["broadleaf", "conifer"]
    assert "if they should be those inside, 'ash', 'birch', 'cedar'" in data.notes[0]


@pytest.mark.parametrize("name", ["train", "Test", "val"])
def test_a_class_may_have_the_name_of_a_split(tmp_path: Path, name: str) -> None:
    write_classes(tmp_path, ["bus", "car", name], 2)
    data = read_splits(tmp_path)
    assert sorted(data.classes) == sorted(["bus", "car", name])
    assert list(data.splits) == ["train"]
    assert data.notes == []


def test_other_classes_below_test_are_named_with_those_of_training(tmp_path: Path) -> None:
    write_classes(tmp_path / "Train", ["ash", "birch"], 2)
    write_classes(tmp_path / "Test", ["ash", "Birch"], 2)
    message = (
        r"^'.*Test' has classes without training images: 'Birch'\. The training classes are 'ash', 'birch'\. Name the "
        r"folders alike, add training images, or remove these classes\.$"
    )
    with pytest.raises(PolycovError, match=message):
        read_splits(tmp_path)


def test_a_test_folder_without_classes_is_named(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", ["ash", "birch"], 2)
    (tmp_path / "test").mkdir()
    make_image(0, 0).save(tmp_path / "test" / "1.jpg")
    message = r"Expected test/CLASS/\*\.jpg, or rename 'test' to hold out images of the training split\.$"
    with pytest.raises(PolycovError, match=message):
        read_splits(tmp_path)


def test_images_without_class_folders_are_counted(tmp_path: Path) -> None:
    for i in range(3):
        make_image(0, i).save(tmp_path / f"{i}.jpg")
    message = r"^'.*' has images \(3\) but no class folders\. Move those of each class into a folder of its own, "
    with pytest.raises(PolycovError, match=message):
        read_splits(tmp_path)


def test_a_folder_without_images_says_which_files_it_has(tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match=r"^There are no images in '.*'\. Expected .*/CLASS/\*\.jpg, or "):
        read_splits(tmp_path)
    (tmp_path / "ash").mkdir()
    (tmp_path / "ash" / "1.RAW2").write_text("")
    with pytest.raises(PolycovError, match=r"^There are no images in '.*'\. Its files end in \.raw2\. Expected "):
        read_splits(tmp_path)

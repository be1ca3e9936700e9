import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from pictures import picture, write_classes, write_data
from polycov.data import ImageData, read_data
from polycov.errors import PolycovError


def labels_by_name(data: ImageData, part: str) -> dict[str, str]:
    samples = data[part]
    return {samples.name(i): data.classes[samples.labels[i]] for i in range(len(samples))}


def read(folder: Path | str, **options: Any) -> ImageData:
    return read_data(str(folder), **{"val_fraction": 0.0, **options})


def test_class_folders_below_train_and_test(tmp_path: Path) -> None:
    data = read(write_data(tmp_path))
    assert data.classes == ["ash", "birch", "cedar"]
    assert labels_by_name(data, "test")["test/cedar/011.jpg"] == "cedar"
    assert data["train"].image(0).size == (40, 40)


def test_val_beside_test_is_for_validation_and_without_test_it_is_the_test(tmp_path: Path) -> None:
    write_data(tmp_path)
    write_classes(tmp_path / "val", ["ash", "birch", "cedar"], 2, start=50)
    both = read_data(str(tmp_path))
    assert all(name.startswith("val/") for name in labels_by_name(both, "val"))
    assert len(both["train"]) == 30
    joined = read(tmp_path)  # no validation wanted: trained on too
    assert len(joined["train"]) == 36
    (tmp_path / "test").rename(tmp_path / "other")
    only = read_data(str(tmp_path))
    assert all(name.startswith("val/") for name in labels_by_name(only, "test"))
    assert all(name.startswith("train/") for name in labels_by_name(only, "val"))


def test_flat_class_folders_are_split_by_seed(tmp_path: Path) -> None:
    write_classes(tmp_path, ["ash", "birch"], 10)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "empty").mkdir()
    data = read(tmp_path, test_fraction=0.3)
    assert len(data["test"]) == 6
    assert data.classes == ["ash", "birch"]
    assert data.fingerprint() == read(tmp_path, test_fraction=0.3).fingerprint()
    assert data.fingerprint() != read(tmp_path, test_fraction=0.3, split_seed=1).fingerprint()


def write_cub(root: Path) -> None:
    birds = ["001.Albatross", "002.Auk"]
    rows = [(f"{bird}/{i:03d}.jpg", k + 1, i % 2) for k, bird in enumerate(birds) for i in range(4)]
    write_classes(root / "images", birds, 4)
    (root / "images.txt").write_text("".join(f"{i} {row[0]}\n" for i, row in enumerate(rows, 1)))
    (root / "image_class_labels.txt").write_text("".join(f"{i} {row[1]}\n" for i, row in enumerate(rows, 1)))
    (root / "train_test_split.txt").write_text("".join(f"{i} {row[2]}\n" for i, row in enumerate(rows, 1)))
    (root / "classes.txt").write_text("1 001.Albatross\n2 002.Auk\n")


@pytest.mark.parametrize("below", ["", "CUB_200_2011"])
def test_cub_as_published(tmp_path: Path, below: str) -> None:
    write_cub(tmp_path / below)
    data = read(tmp_path)
    assert data.name == "CUB-200-2011"
    assert labels_by_name(data, "train") == {
        "images/001.Albatross/001.jpg": "001.Albatross",
        "images/001.Albatross/003.jpg": "001.Albatross",
        "images/002.Auk/001.jpg": "002.Auk",
        "images/002.Auk/003.jpg": "002.Auk",
    }
    assert len(data["test"]) == 4
    data["test"].image(0)


def test_aircraft_as_published_is_squeezed_with_a_margin(tmp_path: Path) -> None:
    root = tmp_path / "fgvc-aircraft-2013b" / "data"
    (root / "images").mkdir(parents=True)
    variants = ["707-320", "A300B4", "F/A-18"]
    for p, part in enumerate(("train", "val", "test")):
        lines = []
        for v, variant in enumerate(variants):
            key = f"{p}{v:06d}"
            picture(v, p).save(root / "images" / f"{key}.jpg")
            lines.append(f"{key} {variant}\n")
        (root / f"images_variant_{part}.txt").write_text("".join(lines))
    data = read_data(str(tmp_path))
    assert data.name == "FGVC-Aircraft"
    assert data.classes == variants
    assert [len(data[part]) for part in ("train", "val", "test")] == [3, 3, 3]
    assert data.squash
    assert round(448 * data.margin) == 512
    assert labels_by_name(data, "test")["images/2000002.jpg"] == "F/A-18"
    (root / "images_variant_test.txt").unlink()
    with pytest.raises(PolycovError, match=r"'images_variant_test.txt' of FGVC-Aircraft is not in"):
        read_data(str(tmp_path))


def car_annotations(rows: list[tuple[Any, ...]], names: list[str]) -> Any:
    kinds = [(name, object) for name in names]
    return np.array([tuple(row) for row in rows], dtype=kinds).reshape(1, -1)


CARS = np.array(["Acura RL 2012", "BMW X5 2007"], dtype=object).reshape(1, -1)


def test_stanford_cars_as_published(tmp_path: Path) -> None:
    fields = ["bbox_x1", "class", "fname"]
    for part in ("train", "test"):
        (tmp_path / f"cars_{part}").mkdir()
        rows = []
        for i in range(4):
            picture(i % 2, i).save(tmp_path / f"cars_{part}" / f"{i:05d}.jpg")
            rows.append((1, i % 2 + 1, f"{i:05d}.jpg"))
        file = "devkit/cars_train_annos.mat" if part == "train" else "cars_test_annos_withlabels.mat"
        (tmp_path / "devkit").mkdir(exist_ok=True)
        savemat(tmp_path / file, {"annotations": car_annotations(rows, fields)})
    savemat(tmp_path / "devkit" / "cars_meta.mat", {"class_names": CARS})
    data = read(tmp_path)
    assert data.name == "Stanford Cars"
    assert data.classes == ["Acura RL 2012", "BMW X5 2007"]
    assert labels_by_name(data, "test")["cars_test/00003.jpg"] == "BMW X5 2007"
    data["test"].image(3)
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(PolycovError, match=r"has no 'cars_test_annos_withlabels\.mat'"):
        read(tmp_path)


def test_stanford_cars_in_one_folder(tmp_path: Path) -> None:
    rows = [(f"car_ims/{i:06d}.jpg", i % 2 + 1, i // 2) for i in range(4)]
    table = car_annotations(rows, ["relative_im_path", "class", "test"])
    savemat(tmp_path / "cars_annos.mat", {"annotations": table, "class_names": CARS})
    data = read(tmp_path)
    assert labels_by_name(data, "train") == {
        "car_ims/000000.jpg": "Acura RL 2012",
        "car_ims/000001.jpg": "BMW X5 2007",
    }


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def jpeg(label: int, number: int) -> bytes:
    file = io.BytesIO()
    picture(label, number).save(file, "jpeg")
    return file.getvalue()


@pytest.mark.parametrize("prefix", ["", "wds/"])
def test_webdataset_shards_are_read_in_place(tmp_path: Path, prefix: str) -> None:
    for shard, name in enumerate(["imagenet-train-000.tar", "imagenet-train-001.tar", "imagenet-validation-000.tar"]):
        with tarfile.open(tmp_path / name, "w") as tar:
            for i in range(4):
                add(tar, f"{shard}{i}.cls", str(i % 2).encode())
                add(tar, f"{shard}{i}.jpg", jpeg(i % 2, shard * 4 + i))
    (tmp_path / "classes.txt").write_text("tench\ngoldfish\n")
    data = read(f"{prefix}{tmp_path}")
    assert data.classes == ["tench", "goldfish"]
    assert [len(data[part]) for part in ("train", "val", "test")] == [8, 0, 4]
    assert labels_by_name(data, "train")["imagenet-train-001.tar/11.jpg"] == "goldfish"
    index = [data["train"].name(i) for i in range(8)].index("imagenet-train-001.tar/12.jpg")
    expected = io.BytesIO(jpeg(0, 6))
    from PIL import Image

    assert data["train"].image(index).tobytes() == Image.open(expected).convert("RGB").tobytes()
    import pickle

    assert pickle.loads(pickle.dumps(data["train"])).image(index).size == (40, 40)  # for another process


def test_labels_of_shards_may_be_json_and_classes_folders(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        for i in range(4):
            add(tar, f"{i}.json", json.dumps({"label": i % 2}).encode())
            add(tar, f"{i}.jpg", jpeg(i % 2, i))
    assert read(tmp_path).classes == ["0", "1"]
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        for i in range(6):
            add(tar, f"{'ab'[i % 2]}/{i}.jpg", jpeg(i % 2, i))
    assert read(tmp_path / "train.tar").classes == ["a", "b"]
    with tarfile.open(tmp_path / "latest.tar", "w") as tar:  # no test part, for all the letters in its name
        for i in range(6):
            add(tar, f"{'ab'[i % 2]}/cam1.{i}.jpg", jpeg(i % 2, i))
    assert [len(read(tmp_path / "latest.tar", test_fraction=0.5)[part]) for part in ("train", "test")] == [2, 4]
    (tmp_path / "latest.tar").unlink()
    (tmp_path / "train.tar").write_text("no tar")
    with pytest.raises(PolycovError, match="Cannot read the tar"):
        read(tmp_path)


def test_hugging_face_data_on_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    splits = {}
    for part, count in (("train", 6), ("test", 4)):
        rows = {"image": [picture(i % 2, i) for i in range(count)], "label": [i % 2 for i in range(count)]}
        splits[part] = datasets.Dataset.from_dict(rows, features)
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "pets")
    data = read(f"hfds/{tmp_path}/pets")
    assert data.classes == ["cat", "dog"]
    assert labels_by_name(data, "test")["test/00000003"] == "dog"
    assert data["train"].image(1).tobytes() == picture(1, 1).tobytes()


def test_typefaces_are_the_same_pictures_everywhere_and_need_no_download() -> None:
    data, again = read_data("typefaces"), read_data("typefaces")
    assert len(data.classes) == 21
    assert [len(data[part]) for part in ("train", "val", "test")] == [672, 168, 840]
    assert data["test"].image(5).tobytes() == again["test"].image(5).tobytes()
    assert data["test"].image(5).tobytes() != data["test"].image(6).tobytes()
    assert data["test"].image(5).size == (256, 256)


def write_one_class(root: Path) -> None:
    write_classes(root, ["alone"], 4)


def write_same_names(root: Path) -> None:
    write_classes(root, ["Robin", "robin "], 4)


def write_unknown_test_class(root: Path) -> None:
    write_classes(root / "train", ["a", "b"], 2)
    write_classes(root / "test", ["a", "z"], 2)


def write_no_classes_below_train(root: Path) -> None:
    for part in ("train", "test"):
        (root / part).mkdir(parents=True)
        picture(0, 0).save(root / part / "1.jpg")


def write_loose_pictures(root: Path) -> None:
    root.mkdir(exist_ok=True)
    picture(0, 0).save(root / "1.jpg")


MISTAKES = {
    "one class": (write_one_class, "Expected at least two classes in .*, got 1: .'alone'."),
    "same names": (write_same_names, "Expected classes of different names in .*, got 'Robin', 'robin '"),
    "unknown test class": (write_unknown_test_class, "The test part of .* has classes that training has not: 'z'"),
    "no classes below train": (
        write_no_classes_below_train,
        "has 1 pictures but no class folders",
    ),
    "loose pictures": (write_loose_pictures, "There are no class folders with pictures in .*CLASS"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_one_cannot_learn_from_is_refused_in_a_sentence(tmp_path: Path, mistake: str) -> None:
    fill, message = MISTAKES[mistake]
    fill(tmp_path / "x")
    with pytest.raises(PolycovError, match=message):
        read(tmp_path / "x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("typeface", "There is no folder 'typeface'. Known: typefaces. Did you mean 'typefaces'"),
        ("no/where", "There is no folder 'no/where'. Also known: typefaces, hfds/…, wds/…"),
        ("tfds/cifar10", "tfds data cannot be read by number"),
        ("hfds/no/such", "Cannot read the data set 'no/such'"),
    ],
)
def test_data_that_are_not_there(data: str, message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        read(data)


@pytest.mark.parametrize("option", ["val_fraction", "test_fraction"])
def test_fractions_are_below_one(tmp_path: Path, option: str) -> None:
    with pytest.raises(PolycovError, match=f"Expected {option} from 0 to below 1, got 1.0"):
        read(write_data(tmp_path), **{option: 1.0})

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from fake_images import make_image, write_classes
from polycov.data.broken import find_broken
from polycov.data.images import SPLITS, ImageData, Split
from polycov.data.read import read_splits
from polycov.errors import PolycovError


def labels_by_name(data: ImageData, split: Split) -> dict[str, str]:
    samples = data[split]
    return {samples.name(i): data.classes[samples.labels[i]] for i in range(len(samples))}


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
    data = read_splits(tmp_path)
    assert data.name == (tmp_path / below).name  # two classes are not all of CUB-200-2011
    assert labels_by_name(data, "train") == {
        "images/001.Albatross/001.jpg": "001.Albatross",
        "images/001.Albatross/003.jpg": "001.Albatross",
        "images/002.Auk/001.jpg": "002.Auk",
        "images/002.Auk/003.jpg": "002.Auk",
    }
    assert len(data["test"]) == 4
    data["test"].image(0)


def test_the_name_of_cub_is_that_of_its_200_classes(tmp_path: Path) -> None:
    write_cub(tmp_path)
    names = (f"{i} {i:03d}.Bird\n" for i in range(3, 201))
    (tmp_path / "classes.txt").write_text("".join(["1 001.Albatross\n2 002.Auk\n", *names]))
    assert read_splits(tmp_path).name == "CUB-200-2011"


def test_damaged_tables_of_cub_are_named(tmp_path: Path) -> None:
    write_cub(tmp_path)
    (tmp_path / "classes.txt").write_text("\n1 001.Albatross\n\n2\n")
    with pytest.raises(PolycovError, match=r"^Expected lines of two columns in 'classes.txt', got '2'\.$"):
        read_splits(tmp_path)
    (tmp_path / "classes.txt").write_text("1 001.Albatross\n")
    with pytest.raises(PolycovError, match=r"^The files of CUB-200-2011 in .* do not agree: no entry '2'\.$"):
        read_splits(tmp_path)


def test_aircraft_as_published_is_squashed_with_a_margin(tmp_path: Path) -> None:
    root = tmp_path / "fgvc-aircraft-2013b" / "data"
    (root / "images").mkdir(parents=True)
    variants = ["707-320", "A300B4", "F/A-18"]
    for s, split in enumerate(SPLITS):
        lines = []
        for v, variant in enumerate(variants):
            key = f"{s}{v:06d}"
            make_image(v, s).save(root / "images" / f"{key}.jpg")
            lines.append(f"{key} {variant}\n")
        (root / f"images_variant_{split}.txt").write_text("".join(lines))
    data = read_splits(tmp_path)
    assert data.name == "FGVC-Aircraft"
    assert data.classes == variants
    assert [len(data[split]) for split in SPLITS] == [3, 3, 3]
    assert data.squash
    assert round(448 * data.resize_margin) == 512
    assert labels_by_name(data, "test")["images/2000002.jpg"] == "F/A-18"
    (root / "images_variant_test.txt").unlink()
    with pytest.raises(PolycovError, match=r"'images_variant_test.txt' of FGVC-Aircraft is missing in"):
        read_splits(tmp_path)


def car_annotations(rows: list[tuple[Any, ...]], names: list[str]) -> Any:
    kinds = [(name, object) for name in names]
    return np.array([tuple(row) for row in rows], dtype=kinds).reshape(1, -1)


CARS = np.array(["Acura RL 2012", "BMW X5 2007"], dtype=object).reshape(1, -1)


def test_stanford_cars_as_published(tmp_path: Path) -> None:
    fields = ["bbox_x1", "class", "fname"]
    (tmp_path / "devkit").mkdir()
    for split in ("train", "test"):
        (tmp_path / f"cars_{split}").mkdir()
        rows = []
        for i in range(4):
            make_image(i % 2, i).save(tmp_path / f"cars_{split}" / f"{i:05d}.jpg")
            rows.append((1, i % 2 + 1, f"{i:05d}.jpg"))
        file = "devkit/cars_train_annos.mat" if split == "train" else "cars_test_annos_withlabels.mat"
        savemat(tmp_path / file, {"annotations": car_annotations(rows, fields)})
    savemat(tmp_path / "devkit" / "cars_meta.mat", {"class_names": CARS})
    data = read_splits(tmp_path)
    assert data.name == "Stanford Cars"
    assert data.classes == ["Acura RL 2012", "BMW X5 2007"]
    assert labels_by_name(data, "test")["cars_test/00003.jpg"] == "BMW X5 2007"
    data["test"].image(3)
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(PolycovError, match=r"has no 'cars_test_annos_withlabels\.mat'"):
        read_splits(tmp_path)


def test_stanford_cars_in_one_folder(tmp_path: Path) -> None:
    rows = [(f"car_ims/{i:06d}.jpg", i % 2 + 1, i // 2) for i in range(4)]
    table = car_annotations(rows, ["relative_im_path", "class", "test"])
    savemat(tmp_path / "cars_annos.mat", {"annotations": table, "class_names": CARS})
    data = read_splits(tmp_path)
    assert labels_by_name(data, "train") == {
        "car_ims/000000.jpg": "Acura RL 2012",
        "car_ims/000001.jpg": "BMW X5 2007",
    }
    (tmp_path / "cars_annos.mat").write_bytes(b"damaged")
    with pytest.raises(PolycovError, match=r"^Cannot read '.*cars_annos\.mat': "):
        read_splits(tmp_path)


@pytest.mark.parametrize("path", ["../../secret.jpg", "a/../../../b.jpg", "..\\b.jpg"])
def test_lists_cannot_lead_out_of_the_folder(tmp_path: Path, path: str) -> None:
    write_cub(tmp_path)
    lines = (tmp_path / "images.txt").read_text().splitlines()
    (tmp_path / "images.txt").write_text("\n".join([*lines[:-1], f"8 {path}"]))
    with pytest.raises(PolycovError, match=r"^Expected paths inside '.*' in its lists of images, got "):
        read_splits(tmp_path)


def test_lists_in_another_encoding_are_named(tmp_path: Path) -> None:
    write_cub(tmp_path)
    (tmp_path / "classes.txt").write_bytes("1 Albatros à bec jaune\n2 002.Auk\n".encode("latin-1"))
    with pytest.raises(PolycovError, match=r"^Expected UTF-8 text in '.*classes.txt': "):
        read_splits(tmp_path)


@pytest.mark.parametrize("path", ["/etc/secret.jpg", "C:\\secret.jpg", "../b.jpg"])
def test_annotations_cannot_lead_out_of_the_folder(tmp_path: Path, path: str) -> None:
    kinds = [("relative_im_path", "O"), ("class", "u1"), ("test", "u1")]
    rows = np.array([("car_ims/1.jpg", 1, 0), (path, 1, 1)], dtype=kinds)
    savemat(tmp_path / "cars_annos.mat", {"annotations": rows, "class_names": np.array(["Audi", "BMW"], dtype=object)})
    with pytest.raises(PolycovError, match=r"^Expected paths inside '.*' in its lists of images, got "):
        read_splits(tmp_path)


@pytest.mark.parametrize("label", [0, 3])
def test_cars_of_a_class_without_a_name_are_refused(tmp_path: Path, label: int) -> None:
    kinds = [("relative_im_path", "O"), ("class", "u1"), ("test", "u1")]
    rows = np.array([("car_ims/1.jpg", 1, 0), ("car_ims/2.jpg", label, 1)], dtype=kinds)
    savemat(tmp_path / "cars_annos.mat", {"annotations": rows, "class_names": np.array(["Audi", "BMW"], dtype=object)})
    with pytest.raises(PolycovError, match=rf"^'car_ims/2.jpg' is of class {label}, but '.*' names 2 classes\.$"):
        read_splits(tmp_path)


def test_a_class_that_is_no_number_is_refused(tmp_path: Path) -> None:
    table = car_annotations([("car_ims/1.jpg", np.inf, 0)], ["relative_im_path", "class", "test"])
    savemat(tmp_path / "cars_annos.mat", {"annotations": table, "class_names": CARS})
    with pytest.raises(PolycovError, match=r"^The annotations in '.*cars_annos.mat' are not those of Stanford Cars"):
        read_splits(tmp_path)


def test_a_name_that_no_file_can_have_is_missing(tmp_path: Path) -> None:
    write_cub(tmp_path)
    lines = (tmp_path / "images.txt").read_text().splitlines()
    (tmp_path / "images.txt").write_text("\n".join([*lines[:-1], "8 002.Auk/\0.jpg"]))
    assert list(find_broken(read_splits(tmp_path), tmp_path / "cache")) == ["images/002.Auk/\0.jpg"]


def test_annotations_of_something_else_are_refused(tmp_path: Path) -> None:
    savemat(tmp_path / "cars_annos.mat", {"annotations": np.arange(3), "class_names": np.array(["Audi", "BMW"])})
    with pytest.raises(PolycovError, match=r"^The annotations in '.*cars_annos.mat' are not those of Stanford Cars"):
        read_splits(tmp_path)

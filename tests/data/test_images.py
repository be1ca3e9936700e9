import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from pictures import picture, write_classes, write_data
from polycov.data import Samples, read_data
from polycov.data.broken import look_for_broken, without_broken
from polycov.data.images import Files, check, decode, hold_out
from polycov.errors import PolycovError
from polycov.system.files import read_json, write_json

QUIET = Console(quiet=True)


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    return write_data(tmp_path / "trees")


def names(samples: Samples) -> set[str]:
    return {samples.name(i) for i in range(len(samples))}


def test_held_out_pictures_are_a_share_of_each_class_and_stay_the_same() -> None:
    samples = Samples(Files(Path()), [f"{c}/{i}" for c in "ab" for i in range(20)], [0] * 20 + [1] * 20)
    stay, held = hold_out(samples, 0.25, seed=3)
    assert Counter(held.labels) == {0: 5, 1: 5}
    assert names(stay) | names(held) == names(samples)
    assert not names(stay) & names(held)
    shuffled = samples.select(reversed(range(40)))
    assert names(hold_out(shuffled, 0.25, seed=3)[1]) == names(held)  # whatever the order on the disk
    assert names(hold_out(samples, 0.25, seed=4)[1]) != names(held)


def test_every_class_keeps_a_training_picture() -> None:
    samples = Samples(Files(Path()), ["a", "b", "c"], [0, 1, 1])
    stay, held = hold_out(samples, 0.9, seed=0)
    assert Counter(stay.labels) == {0: 1, 1: 1}
    assert Counter(held.labels) == {1: 1}


def test_validation_is_held_out_of_training_and_the_test_part_is_left_alone(trees: Path) -> None:
    data = read_data(str(trees), val_fraction=0.2)
    assert {part: len(samples) for part, samples in data.parts.items()} == {"train": 24, "val": 6, "test": 12}
    assert all(name.startswith("test/") for name in names(data["test"]))
    assert not names(data["train"]) & names(data["val"])
    whole = read_data(str(trees), val_fraction=0)
    assert len(whole["train"]) == 30
    assert len(whole["val"]) == 0


def test_fingerprints_tell_splits_and_pictures_apart(trees: Path) -> None:
    one, other = read_data(str(trees), split_seed=0), read_data(str(trees), split_seed=1)
    assert one.fingerprint() != other.fingerprint()
    before = one.fingerprint(stamps=True)
    assert before == other.fingerprint(stamps=True)  # the same pictures
    picture(2, 999).save(trees / "test" / "cedar" / "010.jpg")
    assert read_data(str(trees)).fingerprint() == one.fingerprint()
    assert read_data(str(trees)).fingerprint(stamps=True) != before


def test_pictures_come_upright_in_rgb_on_white(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it turned by 90 degrees
    picture(0, 0).resize((30, 20)).save(tmp_path / "turned.jpg", exif=exif)
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    Image.new("P", (4, 4)).save(tmp_path / "palette.gif")
    assert decode(Image.open(tmp_path / "turned.jpg")).size == (20, 30)
    assert decode(Image.open(tmp_path / "clear.png")).getpixel((0, 0)) == (255, 255, 255)
    assert decode(Image.open(tmp_path / "palette.gif")).mode == "RGB"


def test_deep_pictures_are_scaled_not_cut_off(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).reshape(16, 16)
    Image.fromarray(ramp.astype(np.uint16)).save(tmp_path / "16.png")
    Image.fromarray((ramp / 65535).astype(np.float32)).save(tmp_path / "unit.tiff")
    for name in ("16.png", "unit.tiff"):
        found = np.asarray(decode(Image.open(tmp_path / name)))[..., 0].astype(float)
        np.testing.assert_allclose(found, ramp / 257, atol=1)
    Image.fromarray((ramp * 10).astype(np.float32)).save(tmp_path / "strange.tiff")
    samples = Samples(Files(tmp_path), ["strange.tiff"], [0])
    with pytest.raises(PolycovError, match=r"'strange.tiff': its values go from 0 to 655350"):
        samples.image(0)


def test_what_may_be_repaired_is_not_remembered(trees: Path, tmp_path: Path) -> None:
    link = trees / "train" / "ash" / "link.jpg"
    link.symlink_to(tmp_path / "later.jpg")
    data = read_data(str(trees), val_fraction=0)
    assert list(look_for_broken(data, tmp_path, QUIET)) == ["train/ash/link.jpg"]
    picture(0, 5).save(tmp_path / "later.jpg")
    assert look_for_broken(read_data(str(trees), val_fraction=0), tmp_path, QUIET) == {}


def test_links_in_a_circle_count_no_picture_twice(trees: Path) -> None:
    (trees / "train" / "ash" / "loop").symlink_to(trees)
    assert len(read_data(str(trees), val_fraction=0)["train"]) == 30
    assert {label for label in read_data(str(trees)).classes} == {"ash", "birch", "cedar"}


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    write_classes(tmp_path / "x", ["a", "b"], 4)
    name = os.fsdecode(b"caf\xe9.png")
    picture(0, 9).save(tmp_path / "x" / "a" / "plain.png")
    (tmp_path / "x" / "a" / "plain.png").rename(tmp_path / "x" / "a" / name)
    data = read_data(str(tmp_path / "x"), val_fraction=0)
    assert len(data.fingerprint()) == len(data.fingerprint(stamps=True)) == 64
    write_json(tmp_path / "names.json", [name])
    assert read_json(tmp_path / "names.json") == [name]


def test_broken_pictures_stop_or_are_left_out_by_name(trees: Path, tmp_path: Path) -> None:
    (trees / "train" / "ash" / "text.jpg").write_text("no picture")
    whole = (trees / "train" / "ash" / "000.jpg").read_bytes()
    (trees / "train" / "birch" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    data = read_data(str(trees), val_fraction=0)
    with pytest.raises(PolycovError, match=r"2 of 44 pictures cannot be read: .*text.jpg .*--broken skip"):
        without_broken(data, look_for_broken(data, tmp_path, QUIET), "stop", QUIET)
    kept = without_broken(data, look_for_broken(data, tmp_path, QUIET), "skip", QUIET)
    assert names(data["train"]) - names(kept["train"]) == {"train/ash/text.jpg", "train/birch/cut.jpg"}
    assert len(list((tmp_path / "checked").iterdir())) == 1  # known for the next time
    with pytest.raises(PolycovError, match=r"Cannot read the image 'train/ash/text.jpg': it is not a picture"):
        data["train"].image(sorted(names(data["train"])).index("train/ash/text.jpg"))


def test_a_class_with_nothing_but_broken_pictures_is_named(tmp_path: Path) -> None:
    write_classes(tmp_path / "x", ["a", "b"], 4)
    (tmp_path / "x" / "c").mkdir()
    (tmp_path / "x" / "c" / "1.png").write_text("no picture")
    data = read_data(str(tmp_path / "x"), test_fraction=0.3, val_fraction=0)
    with pytest.raises(PolycovError, match="There are no training pictures of 'c'"):
        check(without_broken(data, look_for_broken(data, tmp_path, QUIET), "skip", QUIET))

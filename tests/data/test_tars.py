import io
import json
import pickle
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from fake_images import make_image
from polycov.data import ImageData, read_data
from polycov.data.image_files import UnreadableImageError
from polycov.data.images import SPLITS, Split
from polycov.errors import PolycovError


def labels_by_name(data: ImageData, split: Split) -> dict[str, str]:
    samples = data[split]
    return {samples.name(i): data.classes[samples.labels[i]] for i in range(len(samples))}


def counts(data: ImageData) -> list[int]:
    return [len(data[split]) for split in SPLITS]


def jpeg(label: int, index: int) -> bytes:
    file = io.BytesIO()
    make_image(label, index).save(file, "jpeg")
    return file.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for shard, name in enumerate(["imagenet-train-000.tar", "imagenet-train-001.tar", "imagenet-validation-000.tar"]):
        members = {}
        for i in range(4):
            members[f"{shard}{i}.cls"] = str(i % 2).encode()
            members[f"{shard}{i}.jpg"] = jpeg(i % 2, shard * 4 + i)
        write_tar(tmp_path / name, members)
    (tmp_path / "classes.txt").write_text("tench\ngoldfish\n")
    return tmp_path


@pytest.mark.parametrize("prefix", ["", "wds/"])
def test_webdataset_shards_are_read_in_place(shards: Path, prefix: str) -> None:
    data = read_data(f"{prefix}{shards}", val_fraction=0)
    assert data.classes == ["tench", "goldfish"]
    assert counts(data) == [8, 0, 4]
    assert labels_by_name(data, "train")["imagenet-train-001.tar/11.jpg"] == "goldfish"
    index = [data["train"].name(i) for i in range(8)].index("imagenet-train-001.tar/12.jpg")
    expected = Image.open(io.BytesIO(jpeg(0, 6))).convert("RGB")
    assert data["train"].image(index).tobytes() == expected.tobytes()
    other_process = pickle.loads(pickle.dumps(data["train"]))
    assert other_process.image(index).tobytes() == expected.tobytes()


def test_labels_beyond_the_named_classes_are_refused(shards: Path) -> None:
    (shards / "classes.txt").write_text("tench\n")
    with pytest.raises(PolycovError, match=r"^'classes.txt' names 1 classes, but a label in the shards is 1\.$"):
        read_data(shards)


def test_labels_may_be_json_and_images_without_one_are_skipped(tmp_path: Path) -> None:
    members = {}
    for i in range(4):
        members[f"{i}.json"] = json.dumps({"label": i % 2}).encode()
        members[f"{i}.jpg"] = jpeg(i % 2, i)
    write_tar(tmp_path / "train.tar", members | {"9.jpg": jpeg(0, 9)})
    data = read_data(tmp_path, val_fraction=0)
    assert data.classes == ["0", "1"]
    assert data.notes[0] == "1 images without a label are skipped"
    assert sum(counts(data)) == 4


def test_classes_may_be_folders(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", {f"{'ab'[i % 2]}/{i}.jpg": jpeg(i % 2, i) for i in range(6)})
    assert read_data(tmp_path / "train.tar", val_fraction=0).classes == ["a", "b"]


def test_only_whole_words_in_the_name_are_a_split(tmp_path: Path) -> None:
    write_tar(tmp_path / "latest.tar", {f"{'ab'[i % 2]}/cam1.{i}.jpg": jpeg(i % 2, i) for i in range(6)})
    assert counts(read_data(tmp_path / "latest.tar", val_fraction=0, test_fraction=0.5)) == [2, 0, 4]


@pytest.mark.parametrize("content", [b"not a tar", b""])
def test_damaged_tars_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.tar").write_bytes(content)
    with pytest.raises(PolycovError, match=r"^Cannot read the tar '.*train\.tar': "):
        read_data(tmp_path)


def test_tars_without_classes_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", {"notes.txt": b"no images"})
    with pytest.raises(PolycovError, match=r"^There are no images with classes in the tars of "):
        read_data(tmp_path)


def test_a_member_beyond_the_end_of_the_tar_is_named(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a/1.jpg")
    info.size = 2**62
    (tmp_path / "x.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024)
    with pytest.raises(PolycovError, match=r"^Cannot read the tar '.*x.tar': 'a/1.jpg' ends beyond the file\.$"):
        read_data(str(tmp_path / "x.tar"))


def test_a_member_that_is_too_large_is_an_unreadable_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polycov.data.tars.MAX_BYTES", 100)
    write_tar(tmp_path / "x.tar", {f"{name}/{i}.jpg": jpeg(0, i) for name in "ab" for i in range(3)})
    samples = read_data(str(tmp_path / "x.tar")).all_samples()
    with pytest.raises(UnreadableImageError, match=r"'x.tar/a/0.jpg': it has \d+ bytes; at most 100 are read"):
        samples.image(0)


def test_a_compressed_tar_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a/1.jpg"))
    with pytest.raises(PolycovError, match=r"^Cannot read the tar '.*x.tar': "):
        read_data(str(tmp_path / "x.tar"))


@pytest.mark.parametrize("label", ["\u00b2", "9" * 5000, "\u0663"])
def test_labels_that_are_no_plain_numbers_are_class_names(tmp_path: Path, label: str) -> None:
    members = {f"{i}.cls": text.encode() for i, text in enumerate([label, "b"] * 4)}
    members |= {f"{i}.jpg": jpeg(i % 2, i) for i in range(8)}
    write_tar(tmp_path / "x.tar", members)
    assert set(read_data(str(tmp_path / "x.tar")).classes) == {label, "b"}


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]", b"\xff", b'{"label": "\\ud800"}'])
def test_damaged_labels_are_named(tmp_path: Path, content: bytes) -> None:
    write_tar(tmp_path / "x.tar", {"1.jpg": jpeg(0, 0), "1.json": content})
    with pytest.raises(PolycovError, match=r"^Cannot read the tar '.*x.tar': "):
        read_data(str(tmp_path / "x.tar"))

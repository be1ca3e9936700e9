import io
import json
import os
import pickle
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

from archives import jpeg, parquet_bytes, tar_bytes, write
from polycov.data import addresses, parquet_rows
from polycov.data.anywhere import Anywhere, Item, item_from_json, item_name, iterate_items
from polycov.data.image_files import UnreadableImageError
from polycov.data.images import Samples
from polycov.errors import MissingDependencyError, PolycovError

IMAGES = [jpeg(i % 3, i) for i in range(7)]
TAR = tar_bytes({f"birds/{i}.jpg": image for i, image in enumerate(IMAGES)} | {"birds/0.cls": b"3", "notes.txt": b"-"})


@pytest.fixture
def memory() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    yield store
    store.rm("/", recursive=True)


def pixels(items: list[Item]) -> list[bytes]:
    samples = Samples(Anywhere(), items, [0] * len(items))
    return [samples.image(i).tobytes() for i in range(len(items))]


def expected(images: list[bytes]) -> list[bytes]:
    return [Image.open(io.BytesIO(image)).convert("RGB").tobytes() for image in images]


def reason(item: Item) -> str:
    with pytest.raises(UnreadableImageError) as caught:
        Samples(Anywhere(), [item], [0]).image(0)
    assert item_name(item) in str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_members_of_a_tar_are_read_in_place(tmp_path: Path, format: int) -> None:
    long = "folder/" * 20 + "é.jpg"
    members = {"b/1.jpg": IMAGES[0], long: IMAGES[1], "1.cls": b"3", "b/.2.jpg": b"hidden", "text.txt": b"no"}
    tar = write(tmp_path / "a.tar", tar_bytes(members, format))
    items = list(iterate_items([tar]))
    assert [item_name(item) for item in items] == [f"{tar}/b/1.jpg", f"{tar}/{long}"]
    assert pixels(items) == expected(IMAGES[:2])
    assert pixels(items[::-1]) == expected(IMAGES[:2][::-1])


@pytest.mark.parametrize("plain", [False, True])
def test_rows_of_a_parquet_file_are_read_by_number(tmp_path: Path, plain: bool) -> None:
    file = write(tmp_path / "a.parquet", parquet_bytes(list(IMAGES), plain=plain))
    items = list(iterate_items([file]))
    assert [item_name(item) for item in items] == [f"{file}/{i:08d}" for i in range(7)]
    order = np.random.default_rng(0).permutation(7).tolist()
    assert pixels([items[i] for i in order]) == expected([IMAGES[i] for i in order])


def test_items_survive_json_and_other_processes(tmp_path: Path) -> None:
    items = list(iterate_items([write(tmp_path / "a.tar", TAR), write(tmp_path / "b.parquet", parquet_bytes([None]))]))
    assert [item_from_json(json.loads(json.dumps(item))) for item in items] == items
    source = Anywhere()
    source.open(items[0])
    assert pickle.loads(pickle.dumps(source)) == Anywhere()
    for wrong in (3, [], ["a"], ["a", 1, 2], ["a", "b", "c", 1], {"a": 1}, ["a", True]):
        with pytest.raises(ValueError, match="expected the place of an image"):
            item_from_json(wrong)


def test_folders_have_images_or_archives_and_no_features(tmp_path: Path) -> None:
    write(tmp_path / "shards" / "b.tar", TAR)
    write(tmp_path / "shards" / "a.parquet", parquet_bytes(list(IMAGES)))
    write(tmp_path / "images" / "1.jpg", IMAGES[0])
    write(tmp_path / "images" / "same.tar", TAR)
    write(tmp_path / "features" / "part-000000.parquet", b"")
    write(tmp_path / "features" / "_embedding.json", b"{}")
    names = [os.path.relpath(item_name(item), tmp_path) for item in iterate_items([tmp_path])]
    assert names[0] == "images/1.jpg"
    assert names[1:] == [f"shards/a.parquet/{i:08d}" for i in range(7)] + [
        f"shards/b.tar/birds/{i}.jpg" for i in range(7)
    ]


def test_a_store_is_walked_and_read_like_a_folder(memory: Any, tmp_path: Path) -> None:
    files = {"d/a.tar": TAR, "d/sub/2.jpg": IMAGES[1], "d/sub/1.jpg": IMAGES[0], "d/sub/.x.jpg": b"", "d/z/n.txt": b""}
    files["d/z/p.parquet"] = parquet_bytes(list(IMAGES))
    for name, content in files.items():
        memory.pipe(f"/{name}", content)
        write(tmp_path / name, content)
    items = list(iterate_items(["memory://d"]))
    here = list(iterate_items([f"file://{tmp_path}/d"]))
    assert [item_name(item).removeprefix("memory://") for item in items] == [
        os.path.relpath(item_name(item), tmp_path) for item in here
    ]
    assert pixels(items) == pixels(here) == expected([*IMAGES, *IMAGES[:2], *IMAGES])
    assert list(iterate_items(["memory://d/sub/1.jpg"])) == ["memory://d/sub/1.jpg"]
    with pytest.raises(PolycovError, match=r"^There is no file or folder 'memory://nothing'\.$"):
        list(iterate_items(["memory://nothing"]))


def test_the_files_of_a_zip_are_a_store_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for i, image in enumerate(IMAGES[:2]):
            archive.writestr(f"birds/{i}.jpg", image)
    items = list(iterate_items([f"zip://birds::file://{tmp_path}/a.zip"]))
    assert items[1] == f"zip://birds/1.jpg::file://{tmp_path}/a.zip"
    assert pixels(items) == expected(IMAGES[:2])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_web_server_is_a_store(server: str, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    for i, image in enumerate(IMAGES[:3]):
        write(tmp_path / "birds" / f"{i}.jpg", image)
    items = list(iterate_items([f"{server}/birds/"]))
    assert items == [f"{server}/birds/{i}.jpg" for i in range(3)]
    assert pixels(items) == expected(IMAGES[:3])
    assert reason(f"{server}/birds/9.jpg") == "it is missing"


def test_broken_members_and_rows_are_named(tmp_path: Path) -> None:
    tar = write(tmp_path / "a.tar", tar_bytes({"good.jpg": IMAGES[0], "bad.jpg": b"text"}))
    good, bad = iterate_items([tar])
    assert reason(bad) == "it is not an image"
    rows = list(iterate_items([write(tmp_path / "b.parquet", parquet_bytes([IMAGES[0], None, b"text"]))]))
    assert pixels(rows[:1]) == pixels([good])
    assert [reason(row) for row in rows[1:]] == ["its row holds no bytes", "it is not an image"]


def test_a_damaged_tar_gives_what_comes_before_and_one_unreadable_image(tmp_path: Path) -> None:
    content = bytearray(tar_bytes({f"{i}.jpg": image for i, image in enumerate(IMAGES)}))
    whole: list[Any] = list(iterate_items([write(tmp_path / "a.tar", bytes(content))]))
    third = int(whole[3][2])
    content[third - 512 : third - 400] = b"x" * 112
    items = list(iterate_items([write(tmp_path / "a.tar", bytes(content))]))
    assert len(items) == 4
    assert pixels(items[:3]) == expected(IMAGES[:3])
    assert item_name(items[3]) == str(tmp_path / "a.tar")
    assert reason(items[3]).startswith("it is damaged: ")
    cut = list(iterate_items([write(tmp_path / "a.tar", bytes(content[: third - 1200]))]))
    assert reason(cut[2]) == "the tar ends before it does"


@pytest.mark.parametrize("name", ["a.tar", "a.parquet"])
def test_what_is_no_archive_is_one_unreadable_image(tmp_path: Path, name: str) -> None:
    for content in (b"", b"text" * 300):
        (item,) = iterate_items([write(tmp_path / name, content)])
        assert reason(item).startswith("it is damaged: ")
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    (item,) = iterate_items([tmp_path / name])
    assert reason(item) == "it is damaged: it is not a regular file"


def test_a_changed_tar_does_not_give_other_images(tmp_path: Path) -> None:
    tar = write(tmp_path / "a.tar", tar_bytes({"1.jpg": IMAGES[0], "2.jpg": IMAGES[1]}))
    _, second = iterate_items([tar])
    write(tar, tar_bytes({"0.jpg": IMAGES[2] * 3, "2.jpg": IMAGES[1]}))
    assert reason(second) == "the tar was changed after its images were listed"
    file = write(tmp_path / "a.parquet", parquet_bytes(list(IMAGES)))
    *_, last = iterate_items([file])
    write(file, parquet_bytes(list(IMAGES[:2])))
    assert reason(last) == "the file was changed after its images were listed"


def test_hostile_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tarfile.TarInfo("1.jpg")
    info.size = 2**62
    tar = write(tmp_path / "a.tar", info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    first, *_ = iterate_items([tar])
    assert reason(first) == f"it has {2**62} bytes; at most {2**30} are read"
    info.size = -1024
    back = write(tmp_path / "b.tar", info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    assert [reason(item) for item in iterate_items([back])] == ["it is damaged: a member ends before it begins"]
    info = tarfile.TarInfo("long")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**40
    claims = write(tmp_path / "c.tar", info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    assert ["a header of" in reason(item) for item in iterate_items([claims])] == [True]
    monkeypatch.setattr(parquet_rows, "MAX_GROUP", 100)
    row, *_ = iterate_items([write(tmp_path / "a.parquet", parquet_bytes(list(IMAGES)))])
    assert reason(row).startswith("its row group has ")


def test_parquet_without_a_clear_column_of_images_is_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "a.parquet")
    (item,) = iterate_items([tmp_path / "a.parquet"])
    assert reason(item) == "it is damaged: it has no column of images, but a, b"
    pq.write_table(pa.table({"a": [b"1"], "b": [b"x"]}), tmp_path / "a.parquet")
    (item,) = iterate_items([tmp_path / "a.parquet"])
    assert "call the column of images 'image'" in reason(item)


def test_compressed_tars_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match=r"is a compressed tar\. Expand it"):
        list(iterate_items([write(tmp_path / "a.tar.gz", b"")]))


def test_a_failing_connection_is_tried_again_and_is_no_broken_image(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/1.jpg", IMAGES[0])
    monkeypatch.setattr(addresses, "PAUSES", (0.0, 0.0))
    calls = []

    def failing(self: Any, path: str, **_: Any) -> bytes:
        calls.append(path)
        if len(calls) < limit:
            raise RuntimeError("no route to host")
        return IMAGES[0]

    monkeypatch.setattr(type(memory), "cat_file", failing)
    limit = 3
    assert pixels(["memory://1.jpg"]) == expected(IMAGES[:1])
    calls.clear()
    limit = 4
    with pytest.raises(ConnectionError, match=r"^Cannot reach 'memory://1.jpg': no route to host\.$"):
        Samples(Anywhere(), ["memory://1.jpg"], [0]).image(0)


def test_unknown_stores_are_refused() -> None:
    with pytest.raises(PolycovError, match="Protocol not known"):
        list(iterate_items(["nowhere://birds"]))
    if find_spec("s3fs") is None:
        with pytest.raises(MissingDependencyError, match="s3fs"):
            list(iterate_items(["s3://bucket/birds"]))

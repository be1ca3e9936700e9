import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from archives import jpeg, parquet_bytes, tar_bytes, write
from polycov.data import addresses
from polycov.errors import PolycovError
from polycov.inference.embed import embed

IMAGES = [jpeg(i % 3, i) for i in range(7)]
SMALL: dict[str, Any] = {"size": 64, "stage": 2, "backbone": "test_resnet", "weights": "none", "workers": 0}


@pytest.fixture
def memory() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    yield store
    store.rm("/", recursive=True)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for i, image in enumerate(IMAGES):
        write(tmp_path / "files" / f"{i}.jpg", image)
    return tmp_path / "files"


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_files_tars_and_parquet_files_give_the_same_features(
    files: Path, memory: Any, tmp_path: Path, workers: int
) -> None:
    archives = {
        "1.tar": tar_bytes({f"{i}.jpg": image for i, image in enumerate(IMAGES[:4])}),
        "2.parquet": parquet_bytes(list(IMAGES[4:]), rows=2),
    }
    for name, content in archives.items():
        write(tmp_path / "archives" / name, content)
        memory.pipe(f"/bucket/{name}", content)
    options = SMALL | {"workers": workers, "shard_size": 3, "batch_size": 2}
    expected = embed("average", files, tmp_path / "a", **options).load()[1]
    for out, source in (("b", tmp_path / "archives"), ("c", "memory://bucket")):
        names, features = embed("average", source, tmp_path / out, **options).load()
        assert names == [f"{source}/1.tar/{i}.jpg" for i in range(4)] + [
            f"{source}/2.parquet/{i:08d}" for i in range(3)
        ]
        np.testing.assert_array_equal(features, expected)
        again = embed("average", source, tmp_path / out, **options)  # the list was read back
        assert again.images == 7


def test_broken_members_stop_it_or_are_skipped_and_remembered(files: Path, tmp_path: Path) -> None:
    tar = tar_bytes({"0.jpg": IMAGES[0], "1.jpg": b"text", "2.jpg": IMAGES[2], "3.jpg": IMAGES[3]})
    tar = tar[: tar.rfind(IMAGES[3][-100:])]  # cut off in the last member
    write(tmp_path / "in" / "a.tar", tar)
    write(tmp_path / "in" / "b.parquet", parquet_bytes([IMAGES[0], None]))
    write(tmp_path / "in" / "c.parquet", b"no Parquet")
    with pytest.raises(PolycovError, match=r"Cannot read the image '.*a\.tar/1\.jpg': it is not an image"):
        embed("average", tmp_path / "in", tmp_path / "out", **SMALL)
    embeddings = embed("average", tmp_path / "in", tmp_path / "out", broken="skip", **SMALL)
    names, features = embeddings.load()
    assert [name.removeprefix(f"{tmp_path}/in/") for name in names] == [
        "a.tar/0.jpg",
        "a.tar/2.jpg",
        "b.parquet/00000000",
    ]
    np.testing.assert_array_equal(features[0], features[2])
    skipped = {name.removeprefix(f"{tmp_path}/in/"): reason for name, reason in embeddings.skipped.items()}
    assert list(skipped) == ["a.tar/1.jpg", "a.tar/3.jpg", "a.tar", "b.parquet/00000001", "c.parquet"]
    assert "the tar ends before it does" in skipped["a.tar/3.jpg"]
    assert "it is damaged" in skipped["c.parquet"]
    assert embed("average", tmp_path / "in", tmp_path / "out", broken="skip", **SMALL) == embeddings


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_lost_connection_is_not_a_broken_image(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    for i, image in enumerate(IMAGES):
        memory.pipe(f"/bucket/{i}.jpg", image)
    monkeypatch.setattr(addresses, "PAUSES", ())
    read = type(memory).cat_file

    def failing(self: Any, path: str, **options: Any) -> bytes:
        if path.endswith("5.jpg"):
            raise RuntimeError("no route to host")
        return bytes(read(self, path, **options))

    options = SMALL | {"workers": workers, "shard_size": 3, "broken": "skip"}
    with monkeypatch.context() as broken:
        broken.setattr(type(memory), "cat_file", failing)
        with pytest.raises(ConnectionError, match=r"^Cannot reach 'memory://bucket/5\.jpg': no route to host\.$"):
            embed("average", "memory://bucket", tmp_path / "out", **options)
    embeddings = embed("average", "memory://bucket", tmp_path / "out", **options)
    assert (embeddings.images, embeddings.skipped) == (7, {})


@pytest.mark.slow
def test_an_embedding_of_shards_resumes_after_a_kill(tmp_path: Path) -> None:
    for shard in range(3):
        members = {f"{shard}-{i}.jpg": jpeg(i % 3, shard * 100 + i) for i in range(100)}
        write(tmp_path / "in" / f"{shard}.tar", tar_bytes(members))
    flags = ["--size", "64", "--stage", "2", "--backbone", "test_resnet", "--weights", "none", "--workers", "0"]
    flags += ["--shard-size", "8", "--batch-size", "4"]
    command = [sys.executable, "-m", "polycov", "embed", "average", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    process = subprocess.Popen([*command, *flags])
    while len(list((tmp_path / "out").glob("part-*"))) < 3 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert 3 <= len(done) < 38
    subprocess.run([*command, *flags], check=True, timeout=120)
    assert all(path.stat().st_mtime_ns == moment for path, moment in done.items())
    options = SMALL | {"shard_size": 8, "batch_size": 4}
    names, features = embed("average", tmp_path / "in", tmp_path / "again", **options).load()
    resumed = embed("average", tmp_path / "in", tmp_path / "out", **options).load()
    assert resumed[0] == names
    np.testing.assert_allclose(resumed[1], features, rtol=1e-4, atol=1e-6)

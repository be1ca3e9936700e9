import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polycov
from archives import jpeg, parquet_bytes, tar_bytes, write
from polycov.errors import PolycovError
from polycov.inference import search as module
from polycov.inference.embed import embed
from polycov.inference.embedder import make_embedder
from polycov.inference.search import search

SMALL: dict[str, Any] = {"size": 64, "stage": 2, "backbone": "test_resnet", "weights": "none", "workers": 0}
IMAGES = [jpeg(i % 3, i) for i in range(8)]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for i, image in enumerate(IMAGES):
        write(tmp_path / "images" / f"{i}.jpg", image)
    return tmp_path / "images"


def test_queries_are_embedded_as_the_images_were(images: Path, tmp_path: Path) -> None:
    embeddings = embed("ipccp-ts", images, tmp_path / "out", dim=64, seed=3, shard_size=3, **SMALL)
    result = search(embeddings, [images / "2.jpg", images / "5.jpg"], top=4)
    assert result.exact
    assert [one.query for one in result.found] == [str(images / "2.jpg"), str(images / "5.jpg")]
    names, features = embeddings.load()
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    for one, i in zip(result.found, (2, 5), strict=True):
        order = np.argsort(-(units @ units[i]), kind="stable")[:4]
        assert [hit.image for hit in one.hits] == [names[j] for j in order]
        assert one.hits[0].image == one.query
        np.testing.assert_allclose([hit.cosine for hit in one.hits], (units @ units[i])[order], atol=1e-5)
    table = result.table()
    assert table.columns == ("query", "rank", "image", "cosine")
    assert len(table.rows) == 8


def test_queries_and_images_may_be_in_tars_and_parquet_files(images: Path, tmp_path: Path) -> None:
    tar = write(tmp_path / "a.tar", tar_bytes({f"{i}.jpg": image for i, image in enumerate(IMAGES)}))
    embed("average", tar, tmp_path / "out", **SMALL)
    result = polycov.search(tmp_path / "out", write(tmp_path / "q.parquet", parquet_bytes([IMAGES[3]])), top=1)
    assert result.found[0].query == f"{tmp_path}/q.parquet/00000000"
    assert result.found[0].hits[0].image == f"{tar}/3.jpg"
    page = result.page(tmp_path / "page.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 2


def test_a_run_must_be_there_and_the_same(finished: Path, images: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    embed(str(run), images, tmp_path / "out", workers=0)
    assert search(tmp_path / "out", images / "0.jpg").found[0].hits[0].cosine == pytest.approx(1, abs=1e-5)
    run.rename(tmp_path / "moved")
    with pytest.raises(PolycovError, match=r"which is gone\. Say where it is with --model, or embed the images again"):
        search(tmp_path / "out", images / "0.jpg")
    assert search(tmp_path / "out", images / "0.jpg", model=tmp_path / "moved").found[0].hits
    with pytest.raises(PolycovError, match="which is gone"):
        search(tmp_path / "out", images / "0.jpg", model="absent")


def test_another_model_is_refused(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embed("average", images, tmp_path / "out", **SMALL)
    made = make_embedder

    def changed(*arguments: Any) -> Any:
        embedder = made(*arguments)
        embedder.digest = "another"
        return embedder

    monkeypatch.setattr(module, "make_embedder", changed)
    with pytest.raises(PolycovError, match=r"'average' is not the model that made the embedding"):
        search(tmp_path / "out", images / "0.jpg")


def test_unreadable_queries_and_no_queries_are_named(images: Path, tmp_path: Path) -> None:
    embed("average", images, tmp_path / "out", **SMALL)
    with pytest.raises(PolycovError, match=r"Cannot read the image '.*bad\.jpg'"):
        search(tmp_path / "out", write(tmp_path / "bad.jpg", b"text"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(PolycovError, match="Expected images to search for"):
        search(tmp_path / "out", tmp_path / "empty")
    with pytest.raises(PolycovError, match="Expected top to be at least 1"):
        search(tmp_path / "out", images, top=0)


def test_an_index_is_used_when_it_is_asked_for_or_from_a_size_on(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed("average", images, tmp_path / "out", **SMALL)
    with pytest.raises(PolycovError, match="An index needs at least 1000 images"):
        search(tmp_path / "out", images / "0.jpg", index="ivfpq")
    monkeypatch.setattr(module, "INDEX_FROM", 8)
    with pytest.raises(PolycovError, match="An index needs at least 1000 images"):
        search(tmp_path / "out", images / "0.jpg")
    assert search(tmp_path / "out", images / "0.jpg", index="exact").exact
    monkeypatch.setattr(module, "find_spec", lambda name: None)  # without faiss
    assert search(tmp_path / "out", images / "0.jpg").exact


def test_duplicates_of_real_files(images: Path, tmp_path: Path) -> None:
    write(images / "copy.jpg", IMAGES[4])
    result = polycov.find_duplicates(embed("average", images, tmp_path / "out", **SMALL), threshold=0.99999)
    assert [sorted(Path(hit.image).name for hit in group) for group in result.groups] == [["4.jpg", "copy.jpg"]]

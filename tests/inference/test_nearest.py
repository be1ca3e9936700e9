from pathlib import Path

import numpy as np
import pytest
import torch

from polycov.errors import PolycovError
from polycov.inference.gallery import Gallery
from polycov.inference.nearest import exact_nearest, indexed_nearest
from polycov.inference.search_index import SearchIndex
from polycov.progress import LogProgress
from small_embedding import clusters, write_embedding


def unit(features: np.ndarray) -> np.ndarray:
    return features / np.linalg.norm(features, axis=1, keepdims=True)


@pytest.mark.parametrize("top", [1, 7, 40, 100])
def test_exact_search_is_a_sort_of_all_cosines(tmp_path: Path, top: int) -> None:
    features, queries = clusters(45, 6, 4), clusters(3, 6, 4, seed=1)
    write_embedding(tmp_path, features, shard_size=10, skipped=(3, *range(20, 30)))
    result = exact_nearest(torch.tensor(unit(queries)).float(), Gallery(tmp_path).blocks(), top)
    kept = [i for i in range(45) if i != 3 and not 20 <= i < 30]
    cosines = unit(queries) @ unit(features[kept]).T
    for row, neighbours in zip(cosines, result, strict=True):
        order = np.argsort(-row, kind="stable")[:top]
        np.testing.assert_allclose([cosine for _, cosine in neighbours], row[order], atol=1e-6)
        names = [Gallery(tmp_path).rows([number])[number][0] for number, _ in neighbours[:3]]
        assert names == [f"/{kept[i]}.jpg" for i in order[:3]]


def test_equal_cosines_come_in_the_order_of_the_images() -> None:
    same = torch.nn.functional.normalize(torch.ones(4, 3), dim=1)
    ((*found,),) = exact_nearest(same[:1], [(0, same[:2]), (10, same)], 5)
    assert [number for number, _ in found] == [0, 1, 10, 11, 12]


def test_the_index_finds_nearly_all_and_is_made_once(tmp_path: Path) -> None:
    features, queries = clusters(4000, 32, 40), clusters(20, 32, 40, seed=1)
    write_embedding(tmp_path, features, shard_size=256, skipped=(5, 600))
    gallery, units, lines = Gallery(tmp_path), torch.tensor(unit(queries)).float(), list[str]()
    exact = exact_nearest(units, gallery.blocks(), 10)
    index = SearchIndex(gallery).prepare(LogProgress(lines.append))
    assert len(lines) == 1
    assert lines[0].endswith("_search.faiss': there is none")
    found = indexed_nearest(units, gallery, index, 10)
    both = [len({n for n, _ in a} & {n for n, _ in b}) / 10 for a, b in zip(exact, found, strict=True)]
    assert np.mean(both) > 0.9
    for (number, cosine), (same, other) in zip(exact[0], found[0], strict=True):
        assert number != same or cosine == pytest.approx(other, abs=1e-6)  # cosines are exact
    again = SearchIndex(Gallery(tmp_path)).prepare(LogProgress(lines.append))
    assert len(lines) == 1
    assert again.candidates(units, 50) == index.candidates(units, 50)


def test_a_damaged_or_old_index_is_made_again(tmp_path: Path) -> None:
    write_embedding(tmp_path, clusters(1200, 8, 5), shard_size=200)
    lines: list[str] = []

    def prepare() -> str:
        lines.clear()
        SearchIndex(Gallery(tmp_path)).prepare(LogProgress(lines.append))
        return lines[0].rpartition(": ")[2] if lines else ""

    assert prepare() == "there is none"
    assert prepare() == ""
    content = bytearray((tmp_path / "_search.faiss").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "_search.faiss").write_bytes(content)
    assert prepare() == "it is damaged"
    (tmp_path / "_search.json").write_text("{")
    assert prepare() == "it is damaged"
    (tmp_path / "_search.faiss").unlink()
    assert prepare() == "it is damaged"
    shard = tmp_path / "part-000000.npz"
    shard.write_bytes(shard.read_bytes())
    assert prepare() == "the embedding has changed"
    assert prepare() == ""


@pytest.mark.parametrize("width", [2, 11])
def test_few_dimensions_can_be_indexed_and_few_images_are_refused(tmp_path: Path, width: int) -> None:
    features = clusters(1000, width, 20)
    write_embedding(tmp_path / "enough", features, shard_size=300)
    gallery = Gallery(tmp_path / "enough")
    units = torch.tensor(unit(features)).float()[:5]
    found = indexed_nearest(units, gallery, SearchIndex(gallery).prepare(), 1)
    assert [numbers[0][1] for numbers in found] == pytest.approx([1.0] * 5, abs=1e-5)
    write_embedding(tmp_path / "few", features[:999], shard_size=300)
    with pytest.raises(PolycovError, match=r"at least 1000 images, got 999: use --index exact\.$"):
        SearchIndex(Gallery(tmp_path / "few")).prepare()

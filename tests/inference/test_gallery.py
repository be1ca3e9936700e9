from pathlib import Path

import numpy as np
import pytest

from polycov.errors import PolycovError
from polycov.inference.gallery import Gallery
from small_embedding import clusters, write_embedding


def unit(features: np.ndarray) -> np.ndarray:
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def test_rows_are_the_unit_features_of_their_names(tmp_path: Path) -> None:
    features = clusters(50, 6, 4)
    write_embedding(tmp_path, features, shard_size=16, skipped=(0, 17, 18, *range(32, 48)))
    gallery = Gallery(tmp_path)
    numbers = [first + i for first, block in gallery.blocks() for i in range(len(block))]
    found = gallery.rows(numbers[::-1])
    assert len(found) == 50 - 3 - 16
    for name, feature in found.values():
        np.testing.assert_allclose(feature.numpy(), unit(features)[int(name[1:-4])], atol=1e-6)
    assert len(gallery.sample(20)) >= 20
    assert len(gallery.sample(1000)) == 31


def test_items_have_full_paths(tmp_path: Path) -> None:
    write_embedding(tmp_path, clusters(5, 3, 2))
    assert Gallery(tmp_path).items(["/3.jpg", "absent"]) == {"/3.jpg": "/3.jpg"}


def test_an_incomplete_embedding_is_refused(tmp_path: Path) -> None:
    write_embedding(tmp_path, clusters(50, 3, 2))
    fingerprint = Gallery(tmp_path).fingerprint()
    assert Gallery(tmp_path).fingerprint() == fingerprint
    path = tmp_path / "part-000001.npz"
    path.write_bytes(path.read_bytes())
    assert Gallery(tmp_path).fingerprint() != fingerprint
    path.unlink()
    with pytest.raises(PolycovError, match=r"has 3 of 4 shards: run the same embed command again\.$"):
        Gallery(tmp_path)
    with pytest.raises(PolycovError, match="There is no file"):
        Gallery(tmp_path / "absent")

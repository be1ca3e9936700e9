from pathlib import Path

import numpy as np
import pytest

from polycov.errors import PolycovError
from polycov.inference import duplicates as module
from polycov.inference.duplicates import find_duplicates
from small_embedding import write_embedding


def reference(features: np.ndarray, threshold: float) -> set[frozenset[str]]:
    """Connected components of a plain loop over all pairs."""
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    groups = {i: {i} for i in range(len(features))}
    for i in range(len(features)):
        for j in range(i):
            if units[i] @ units[j] >= threshold and groups[i] is not groups[j]:
                groups[i] |= groups[j]
                for k in groups[j]:
                    groups[k] = groups[i]
    return {frozenset(f"/{k}.jpg" for k in group) for group in groups.values() if len(group) > 1}


@pytest.mark.parametrize(("rows", "block"), [(2**16, 2**26), (16, 64), (1, 1)])
@pytest.mark.parametrize("threshold", [0.9, 0.97, 1.0])
def test_groups_are_those_of_a_loop_over_all_pairs(
    tmp_path: Path, threshold: float, rows: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(30, 4))
    features = np.concatenate(
        [features, features[:8], 3 * features[:4], features[10:15] + 0.1 * rng.normal(size=(5, 4))]
    )
    write_embedding(tmp_path, features, shard_size=7)
    monkeypatch.setattr(module, "ROWS", rows)
    monkeypatch.setattr(module, "BLOCK", block)
    found = find_duplicates(tmp_path, threshold=threshold)
    expected = reference(features.astype(np.float32), threshold - 1e-6)
    assert {frozenset(hit.image for hit in group) for group in found.groups} == expected
    assert len(expected) >= 8
    assert all(hit.cosine >= threshold - 1e-6 for group in found.groups for hit in group)
    best = [max(hit.cosine for hit in group) for group in found.groups]
    assert best == sorted(best, reverse=True)


def test_the_cosine_is_the_largest_to_another_image_of_the_group(tmp_path: Path) -> None:
    angles = np.array([0.0, 0.1, 0.13, 2.0])
    write_embedding(tmp_path, np.stack([np.cos(angles), np.sin(angles)], 1))
    result = find_duplicates(tmp_path, threshold=0.99)
    ((*group,),) = result.groups
    assert [hit.image for hit in group] == ["/0.jpg", "/1.jpg", "/2.jpg"]
    np.testing.assert_allclose([hit.cosine for hit in group], np.cos([0.1, 0.03, 0.03]), atol=1e-6)
    assert str(result) == "1 group, 2 images too many, cosine of at least 0.99"


def test_many_equal_images_are_one_group(tmp_path: Path) -> None:
    write_embedding(tmp_path, np.ones((500, 3)), shard_size=64, skipped=(100,))
    (group,) = find_duplicates(tmp_path).groups
    assert len(group) == 499


def test_no_duplicates_and_no_sense(tmp_path: Path) -> None:
    write_embedding(tmp_path, np.eye(5))
    assert find_duplicates(tmp_path).groups == ()
    for threshold in (0, 1.5, float("nan")):
        with pytest.raises(PolycovError, match="Expected threshold above 0 and up to 1"):
            find_duplicates(tmp_path, threshold=threshold)

from pathlib import Path

import numpy as np
import pytest
import torch

from fake_images import make_image
from polycov.bench.duplicates import COPIES, THRESHOLDS, thresholds, write_copies
from polycov.bench.search import recall_at_10, search_times
from polycov.data.image_files import read_image


def test_the_index_is_compared_with_exact_search() -> None:
    exact, index, order = search_times(3000)
    assert (exact["search"], exact["recall_at_10"]) == ("exact", 1.0)
    assert 0.9 < index["recall_at_10"] <= 1
    assert order["recall_at_10"] <= index["recall_at_10"]
    assert index["bytes_per_image"] > 72  # codes and numbers
    assert exact.keys() == index.keys() == order.keys()


def test_recall_counts_the_ten_nearest() -> None:
    exact = [[(i, 1.0) for i in range(10)], [(i, 1.0) for i in range(5)]]
    found = [[(i, 1.0) for i in range(5, 15)], [(i, 1.0) for i in range(5)]]
    assert recall_at_10(exact, found) == 0.75


def test_precision_and_recall_of_known_angles() -> None:
    kinds = ("original", *COPIES)
    angles = [0.0, 0.01, 0.02, 0.3, 0.42, 1.5, 1.5, 1.5]
    features = torch.tensor([[np.cos(a), np.sin(a)] for a in angles], dtype=torch.float32)
    rows = list(thresholds("m", [f"{i // 4:05d}-{kinds[i % 4]}" for i in range(8)], features))
    row = rows[THRESHOLDS.index(0.99)]
    # Pairs within 0.14: three of the first image, 0.3 with 0.42 wrongly, three of the second image.
    assert (row["precision"], row["false pairs"]) == (6 / 7, 1)
    assert row["recall"] == pytest.approx(6 / 12)
    assert [row[f"recall, {kind}"] for kind in COPIES] == [0.5, 0.5, 0.0]


def test_copies_are_what_they_are_called(tmp_path: Path) -> None:

    folder = tmp_path
    write_copies(folder, 7, make_image(0, 0, side=40))
    sizes = {path.stem: read_image(path).size for path in folder.iterdir()}
    expected = {"original": (40, 40), "recompressed": (40, 40), "half size": (20, 20), "cropped": (36, 36)}
    assert sizes == {f"00007-{kind}": size for kind, size in expected.items()}

from pathlib import Path

import pytest
import torch

from placed_objects import write_placed
from polycov.data.layouts import read_cub
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.explaining.boxes import Box, box_cover, find_boxes, share_inside

SQUARE = Preprocessing(size=40, resize=40)


def test_the_cover_is_the_share_of_each_cell_inside() -> None:
    cover = box_cover(Box(10, 0, 15, 20), (40, 40), SQUARE, (4, 4))
    expected = torch.zeros(4, 4)
    expected[:2, 1], expected[:2, 2] = 1.0, 0.5
    torch.testing.assert_close(cover, expected)


def test_boxes_are_cropped_with_the_image() -> None:
    cover = box_cover(Box(0, 0, 40, 40), (80, 40), SQUARE, (2, 2))  # the crop begins at 20
    torch.testing.assert_close(cover, torch.tensor([[1.0, 0.0], [1.0, 0.0]]), rtol=0, atol=0.02)
    doubled = box_cover(Box(40, 40, 40, 40), (80, 80), SQUARE, (2, 2))
    torch.testing.assert_close(doubled, torch.tensor([[0.0, 0.0], [0.0, 1.0]]), rtol=0, atol=0.06)


def test_negative_evidence_does_not_count() -> None:
    assert share_inside(torch.tensor([[1.0, -5.0], [1.0, 2.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.5]])) == 0.5
    assert share_inside(torch.tensor([[-1.0, 0.0]]), torch.ones(1, 2)) is None


def test_boxes_of_the_birds_are_found(tmp_path: Path) -> None:
    data = read_cub(write_placed(tmp_path / "birds", classes=2, train=1, test=2, side=32))
    assert data is not None
    boxes = find_boxes(data["test"])
    assert all(data["test"].name(i) in boxes for i in range(4))
    lines = (tmp_path / "birds" / "bounding_boxes.txt").read_text(encoding="utf-8").splitlines()
    box = boxes["images/0/001.png"]
    assert lines[1].split()[1:] == [str(value) for value in map(int, (box.left, box.top, box.width, box.height))]
    (tmp_path / "birds" / "bounding_boxes.txt").write_text("1 2 3\n", encoding="utf-8")
    with pytest.raises(PolycovError, match=r"Expected lines of 5 columns in 'bounding_boxes\.txt'"):
        find_boxes(data["test"])
    (tmp_path / "birds" / "bounding_boxes.txt").unlink()
    assert find_boxes(data["test"]) == {}

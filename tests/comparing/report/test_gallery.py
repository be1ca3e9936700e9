from pathlib import Path

import pytest

from fake_images import write_data
from polycov.comparing.report.gallery import make_gallery
from polycov.data.images import ImageData
from polycov.data.read import read_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    folder: Path = tmp_path_factory.mktemp("gallery") / "trees"
    return read_data(str(write_data(folder, train=3, test=4)))


# Images 0 to 3 are ashes (0), 4 to 7 birches (1), 8 to 11 cedars (2).
PREDICTED = [1, 0, 2, 1, 1, 0, 1, 1, 2, 2, 2, 2]
LOSSES = [2.0, 9.9, 5.0, 3.0, 0.1, 1.5, 0.1, 0.1, 9.8, 0.1, 0.1, 0.1]  # large for two that are correct


def test_the_hardest_mistakes_have_the_largest_loss(data: ImageData) -> None:
    gallery = make_gallery(data, PREDICTED, LOSSES, hardest=3)
    assert [entry["index"] for entry in gallery["hardest"]] == [2, 3, 0]
    assert gallery["hardest"][0]["class"] == "ash"
    assert gallery["hardest"][0]["prediction"] == "cedar"


def test_the_most_confused_pairs_come_with_their_hardest_mistake(data: ImageData) -> None:
    gallery = make_gallery(data, PREDICTED, LOSSES)
    assert [(pair["times"], pair["one"]["index"]) for pair in gallery["pairs"]] == [(3, 3), (1, 2)]
    for pair in gallery["pairs"]:
        assert pair["other"]["class"] == pair["other"]["prediction"] == pair["one"]["prediction"]


def test_some_predictions_are_drawn_at_random_and_always_the_same(data: ImageData) -> None:
    drawn = [entry["index"] for entry in make_gallery(data, PREDICTED, LOSSES, count=5)["predictions"]]
    assert len(set(drawn)) == 5
    assert drawn == [entry["index"] for entry in make_gallery(data, PREDICTED[::-1], count=5)["predictions"]]


def test_without_losses_nothing_is_called_the_hardest(data: ImageData) -> None:
    gallery = make_gallery(data, PREDICTED)
    assert gallery["hardest"] == []
    assert len(gallery["pairs"]) == 2


def test_without_mistakes_there_are_only_predictions(data: ImageData) -> None:
    gallery = make_gallery(data, data["test"].labels, LOSSES)
    assert gallery["hardest"] == gallery["pairs"] == []
    assert len(gallery["predictions"]) == 12

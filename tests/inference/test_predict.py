from pathlib import Path

import pytest
from PIL import Image

import polycov
from polycov.errors import PolycovError
from polycov.inference.predict import image_files, predict, predictions_table
from polycov.progress import LogProgress


def test_predictions_are_those_of_the_model(finished: Path, trees: Path) -> None:
    predictions = list(predict(finished, trees / "test", top=2))
    model = polycov.Model.from_pretrained(finished)
    assert [p.image for p in predictions] == sorted((trees / "test").rglob("*.jpg"))
    for prediction in predictions[:3]:
        image = model.preprocessing(Image.open(prediction.image))
        expected = model.predict(image[None])[0].sort(descending=True)
        names = [model.classes[i] for i in expected.indices[:2]]
        assert [name for name, _ in prediction.classes] == names
        assert [value for _, value in prediction.classes] == pytest.approx(expected.values[:2].tolist(), rel=1e-5)
    assert list(predict(model, trees / "test", top=2)) == predictions  # a model in memory does too


def test_an_image_that_cannot_be_classified_is_named(finished: Path, trees: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not an image")
    good = trees / "test" / "ash" / "006.jpg"
    lines: list[str] = []
    bad, fine = predict(finished, [tmp_path / "text.jpg", good], progress=LogProgress(lines.append))
    assert bad.problem
    assert not bad.classes
    assert fine.image == good
    assert not fine.problem
    assert lines[0].startswith(f"cannot classify {tmp_path / 'text.jpg'}: ")
    assert len(predictions_table([bad, fine], 3).rows) == 1


def test_mistakes(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match=r"There is no image 'nowhere\.jpg'"):
        predict(finished, "nowhere.jpg")
    with pytest.raises(PolycovError, match="There are no images in"):
        image_files([tmp_path])
    with pytest.raises(PolycovError, match="Expected images"):
        image_files([])
    with pytest.raises(PolycovError, match="Expected top to be at least 1"):
        predict(finished, tmp_path, top=0)

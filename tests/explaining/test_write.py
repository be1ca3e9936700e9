from pathlib import Path

import pytest

from polycov.errors import PolycovError
from polycov.explaining.write import write_explanations
from polycov.models.model import Model
from polycov.progress import LogProgress


def test_one_page_for_all_images_and_one_figure_for_each(finished: Path, trees: Path, tmp_path: Path) -> None:
    folder = trees / "test" / "ash"
    (page,) = write_explanations(finished, folder, tmp_path / "page.html", neighbours=1)
    text = page.read_text(encoding="utf-8")
    assert text.count("<article") == text.count("Most similar training images") == 3
    assert write_explanations(finished, folder / "006.jpg", tmp_path / "one.svg") == [tmp_path / "one.svg"]
    figures = write_explanations(finished, [folder], tmp_path / "many.svg")
    assert [path.name for path in figures] == ["many-1.svg", "many-2.svg", "many-3.svg"]
    assert all(path.stat().st_size > 10000 for path in figures)


def test_without_its_training_images_a_model_is_explained_all_the_same(
    finished: Path, trees: Path, tmp_path: Path
) -> None:
    Model.from_pretrained(finished).save_pretrained(tmp_path / "model")
    lines: list[str] = []
    progress = LogProgress(lines.append)
    image = trees / "test" / "ash" / "006.jpg"
    (page,) = write_explanations(tmp_path / "model", image, tmp_path / "page.html", progress=progress)
    assert any("no similar training images" in line and "not a training run" in line for line in lines)
    assert "Most similar" not in page.read_text(encoding="utf-8")
    lines.clear()
    write_explanations(tmp_path / "model", image, tmp_path / "page.html", neighbours=0, progress=progress)
    assert not any("similar" in line for line in lines)


@pytest.mark.parametrize("out", ["page.txt", "page", "folder.html"])
def test_other_files_are_not_written(out: str, finished: Path, trees: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(PolycovError, match=r"ends in \.html, \.png, \.svg or \.pdf"):
        write_explanations(finished, trees / "test" / "ash" / "006.jpg", tmp_path / out)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]

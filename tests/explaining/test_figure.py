from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polycov.explaining.explain import explain
from polycov.explaining.explained import ExplainedImage, explain_images
from polycov.explaining.figure import write_explanation_figure
from polycov.training.run_folder import load_run


@pytest.fixture(scope="module")
def item(finished: Path, trees: Path) -> ExplainedImage:
    return explain_images(load_run(finished).model, trees / "test" / "ash" / "006.jpg")[0]


def test_a_figure_has_the_map_and_numbers_of_each_view(item: ExplainedImage, tmp_path: Path) -> None:
    path = write_explanation_figure(tmp_path / "new" / "figure.svg", item)
    text = path.read_text(encoding="utf-8")
    difference, one, _ = item.views
    for words in (difference.target, f"against {difference.against}", "by itself"):
        assert f"<!-- {words} -->" in text or words in text
    for view in (difference, one):
        assert f"{float(view.regions.abs().max()):+.2f}" in text
        assert f"{view.score - view.constant:+.2f} in all" in text
    again = write_explanation_figure(tmp_path / "again.svg", item)
    assert again.read_text(encoding="utf-8") == text  # the same explanation, the same file


def test_a_map_is_orange_and_blue(item: ExplainedImage, tmp_path: Path) -> None:
    with Image.open(write_explanation_figure(tmp_path / "figure.png", item)) as image:
        pixels = image.convert("RGB")
    assert pixels.width > 2 * pixels.height
    red, _, blue = np.moveaxis(np.asarray(pixels).astype(float), -1, 0)
    assert (red > 1.5 * blue).sum() > 1000
    assert (blue > 1.5 * red).sum() > 1000


def test_an_explanation_by_itself_has_one_map(finished: Path, trees: Path, tmp_path: Path) -> None:
    (alone,) = explain(finished, trees / "test" / "ash" / "006.jpg")
    with Image.open(write_explanation_figure(tmp_path / "one.png", alone)) as narrow:
        assert narrow.width < 1500
    assert write_explanation_figure(tmp_path / "one.pdf", alone).read_bytes().startswith(b"%PDF")

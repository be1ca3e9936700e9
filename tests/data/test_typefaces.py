import random
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from polycov.data import read_data, typefaces
from polycov.data.images import SPLITS
from polycov.data.typefaces import _colour, _random_line
from polycov.errors import MissingDependencyError


def test_images_are_the_same_each_time_and_need_no_download() -> None:
    data, again = read_data("typefaces"), read_data("typefaces")
    assert len(data.classes) == 21
    assert [len(data[split]) for split in SPLITS] == [672, 168, 840]
    assert data["test"].image(5).tobytes() == again["test"].image(5).tobytes()
    assert data["test"].image(5).tobytes() != data["test"].image(6).tobytes()
    assert data["test"].image(5).size == (256, 256)
    assert data.size == 256


def test_text_and_colours_are_those_of_earlier_versions() -> None:
    rng = random.Random("1 train STIX 3")
    assert _random_line(rng, 20) == "Cf lksq 4452 3660 EEN 2708"
    image = _colour(np.linspace(0, 1, 256 * 256, dtype=np.float32).reshape(256, 256), rng)
    assert [image.getpixel((x, y)) for x, y in ((0, 0), (100, 20), (255, 255))] == [
        (73, 45, 78),
        (72, 51, 83),
        (114, 109, 140),
    ]


def test_whole_images_are_those_of_earlier_versions() -> None:
    means = [np.asarray(read_data("typefaces")["test"].image(i)).mean() for i in (0, 321, 839)]
    np.testing.assert_allclose(means, [77.77, 148.91, 62.45], atol=0.2)  # versions of FreeType differ a little


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"fonts of matplotlib.*pip install 'polycov\[cli\]'"):
        read_data("typefaces")


@pytest.mark.parametrize("index", [0, 7, 23])
@pytest.mark.parametrize("face", ["DejaVuSans.ttf", "DejaVuSansMono-Bold.ttf", "cmti10.ttf", "STIXGeneralBolIta.ttf"])
def test_what_is_not_seen_need_not_be_drawn(face: str, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    font = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / face)
    seen = typefaces.draw(font, random.Random(index))
    monkeypatch.setattr(typefaces, "SEEN", (-(10**6), 10**6))
    assert typefaces.draw(font, random.Random(index)).tobytes() == seen.tobytes()

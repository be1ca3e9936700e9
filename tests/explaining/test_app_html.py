import base64
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from polycov.explaining.app_html import as_image, bars, evidence, heat_image, message, neighbours, panels
from polycov.explaining.explanation import EXACT, FIXED, Explanation
from polycov.explaining.neighbour import Neighbour, Shares
from polycov.system.pages import data_url

EVIL = "<script>alert('x')</script>"


def explanation(regions: torch.Tensor, target: str = "ash", against: str | None = None) -> Explanation:
    return Explanation(
        name="image",
        image=torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0)),
        probabilities=[(target, 0.75), ("birch", 0.25)],
        target=target,
        against=against,
        score=float(regions.sum()) - 0.25,
        constant=-0.25,
        regions=regions,
        channel_pairs=[],
        note=EXACT,
        _pairs=lambda: torch.zeros(1),
    )


def decoded(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


def test_the_map_is_orange_for_blue_against_and_clear_where_nothing_is() -> None:
    regions = torch.zeros(4, 4)
    regions[0, 0], regions[3, 3] = 2.0, -1.0
    pixels = np.asarray(heat_image(explanation(regions), 64)).astype(int)
    assert pixels.shape == (64, 64, 4)
    for_it, against_it, nothing = pixels[5, 5], pixels[58, 58], pixels[5, 58]
    assert for_it[0] > 200 > for_it[2]
    assert against_it[2] > 150 > against_it[0]
    assert for_it[3] > against_it[3] > 50  # twice the contribution is stronger
    assert nothing[3] == 0


def test_a_map_of_zeros_is_clear() -> None:
    assert np.asarray(heat_image(explanation(torch.zeros(4, 4))))[..., 3].max() == 0


def test_images_survive_the_data_url() -> None:
    clear = decoded(data_url(heat_image(explanation(torch.ones(4, 4)))))
    assert (clear.format, clear.mode) == ("PNG", "RGBA")
    pixels = torch.linspace(0, 1, 16).expand(3, 16, 16)
    image = decoded(data_url(as_image(pixels)))
    assert image.format == "JPEG"
    np.testing.assert_allclose(np.asarray(image)[8, :, 0] / 255, pixels[0, 8], atol=0.03)


def test_bars_are_as_long_as_the_probabilities() -> None:
    html = bars([("ash", 0.755), ("birch", 0.2)], "birch")
    assert "width:75.5%" in html
    assert '<li class="pc-explained"><span class="pc-bar" style="width:20.0%">' in html


def test_the_score_is_shown_as_a_sum() -> None:
    html = evidence(explanation(torch.full((2, 2), 0.5), against="fir"))
    assert "Why ash and not fir?" in html
    assert "Score +1.75 = regions +2.00" in html
    assert "constant −0.25" in html
    assert "for fir" in html
    assert "held fixed" not in html
    linearised = replace(explanation(torch.ones(2, 2)), note=FIXED.format(stages="signed_sqrt and l2"))
    assert "with the factors of signed_sqrt and l2 held fixed at this image." in evidence(linearised)


def neighbour(name: str, label: str) -> Neighbour:
    shares = Shares(torch.ones(4, 1) / 4, (2, 2))
    return Neighbour(name, label, torch.zeros(3, 8, 8), 0.9, (lambda: shares, lambda: shares))


@pytest.mark.parametrize("against", [None, EVIL])
def test_names_are_not_markup(against: str | None) -> None:
    found = neighbour(EVIL, EVIL)
    shown = explanation(torch.ones(2, 2), EVIL, against)
    html = panels([bars(shown.probabilities), evidence(shown), neighbours([found], EVIL), message(EVIL)])
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_neighbours_of_the_explained_class_are_marked() -> None:
    images = [neighbour(f"{name}.jpg", name) for name in ("ash", "birch", "ash")]
    html = neighbours(images, "ash")
    assert html.count("<figure") == 3
    assert html.count('class="pc-same"') == 2
    assert neighbours([], "ash") == ""

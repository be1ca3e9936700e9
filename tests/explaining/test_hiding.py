import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from polycov.errors import PolycovError
from polycov.explaining.hiding import BLUR, hide_cells, replacement


def test_the_blur_is_that_of_pillow_away_from_the_border() -> None:
    rng = np.random.default_rng(0)
    pixels = np.asarray(Image.fromarray(rng.integers(0, 256, (40, 40)).astype(np.uint8)).resize((160, 160)))
    expected = np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(BLUR * 160))).astype(float)
    found = replacement(torch.from_numpy(pixels.astype(np.float64))[None])[0].numpy()
    inner = slice(40, 120)
    assert np.abs(found - expected)[inner, inner].max() < 3  # Pillow rounds, and approximates with boxes


def test_the_blur_keeps_a_constant_image() -> None:
    image = torch.full((3, 30, 20), 0.7)
    torch.testing.assert_close(replacement(image), image)


def test_cells_divide_the_image_and_only_hidden_ones_change() -> None:
    image, instead = torch.zeros(3, 6, 9), torch.ones(3, 6, 9)
    hidden = torch.zeros(2, 2, 3, dtype=torch.bool)
    hidden[1, 0, 2] = hidden[1, 1, 0] = True
    found = hide_cells(image, hidden, instead)
    assert bool((found[0] == image).all())
    expected = torch.zeros(6, 9)
    expected[:3, 6:] = expected[3:, :3] = 1
    assert bool((found[1] == expected).all())


def test_mistakes() -> None:
    with pytest.raises(PolycovError, match=r"Unknown way to hide regions 'black'\. Known: blur, mean"):
        replacement(torch.zeros(3, 4, 4), "black")  # type: ignore[arg-type]

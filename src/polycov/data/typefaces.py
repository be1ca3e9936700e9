"""Typefaces: a fine-grained task that needs no download, rendered from the fonts that come with matplotlib.

Twenty-one text faces of five families, several of which differ in slant or weight alone. Each picture is a few lines
of made-up words, so that there is nothing to learn but the letters' shapes: text, size, place, slope, colours,
blur, noise and a shadow over the page are random.
"""

import random
import string
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from polycov.data.images import ImageData, Samples
from polycov.errors import PolycovError

FACES = {
    "DejaVu Sans": "DejaVuSans.ttf",
    "DejaVu Sans Bold": "DejaVuSans-Bold.ttf",
    "DejaVu Sans Oblique": "DejaVuSans-Oblique.ttf",
    "DejaVu Sans Bold Oblique": "DejaVuSans-BoldOblique.ttf",
    "DejaVu Mono": "DejaVuSansMono.ttf",
    "DejaVu Mono Bold": "DejaVuSansMono-Bold.ttf",
    "DejaVu Mono Oblique": "DejaVuSansMono-Oblique.ttf",
    "DejaVu Mono Bold Oblique": "DejaVuSansMono-BoldOblique.ttf",
    "DejaVu Serif": "DejaVuSerif.ttf",
    "DejaVu Serif Bold": "DejaVuSerif-Bold.ttf",
    "DejaVu Serif Italic": "DejaVuSerif-Italic.ttf",
    "DejaVu Serif Bold Italic": "DejaVuSerif-BoldItalic.ttf",
    "STIX": "STIXGeneral.ttf",
    "STIX Bold": "STIXGeneralBol.ttf",
    "STIX Italic": "STIXGeneralItalic.ttf",
    "STIX Bold Italic": "STIXGeneralBolIta.ttf",
    "Computer Modern Roman": "cmr10.ttf",
    "Computer Modern Bold": "cmb10.ttf",
    "Computer Modern Italic": "cmti10.ttf",
    "Computer Modern Sans": "cmss10.ttf",
    "Computer Modern Typewriter": "cmtt10.ttf",
}
PER_CLASS = {"train": 40, "test": 40}
SIDE = 256
VERSION = 1  # of the pictures: another number, other pictures
LETTERS = string.ascii_lowercase + "eeeeaaooiittnnrrss"

Item = tuple[str, str, int]  # part, face, number


@dataclass(frozen=True)
class Typefaces:
    """Pictures that are drawn when asked for; the same item is the same picture, everywhere and always."""

    fonts: Path
    sound = True

    def open(self, item: Item) -> Image.Image:
        """Draws a picture."""
        part, face, number = item
        return draw(str(self.fonts / FACES[face]), random.Random(f"{VERSION} {part} {face} {number}"))

    def name(self, item: Item) -> str:
        """Part, face and number."""
        return f"{item[0]}/{item[1]}/{item[2]:03d}.png"

    def stamp(self, item: Item) -> str:
        """The version of the drawing."""
        return f"version {VERSION}"


def read_typefaces() -> ImageData:
    """Returns the built-in task.

    Raises:
        PolycovError: if matplotlib or a font of it is not there.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise PolycovError("The typefaces come with matplotlib. Install it with: pip install 'polycov[cli]'") from error
    source = Typefaces(Path(matplotlib.get_data_path()) / "fonts" / "ttf")
    missing = [file for file in FACES.values() if not (source.fonts / file).is_file()]
    if missing:
        raise PolycovError(f"This matplotlib has no {', '.join(missing)} in {str(source.fonts)!r}.")
    parts = {}
    for part, count in PER_CLASS.items():
        items = [(part, face, number) for face in FACES for number in range(count)]
        parts[part] = Samples(source, items, [i for i in range(len(FACES)) for _ in range(count)])
    return ImageData("typefaces", list(FACES), parts, side=SIDE)


def draw(font: str, chance: random.Random) -> Image.Image:
    """Draws a picture of text in a font."""
    size = chance.randint(15, 30)
    paper = _page(_font(font, size), size, chance)
    paper = paper.rotate(chance.uniform(-12, 12), Image.Resampling.BICUBIC)
    edge = (paper.width - SIDE) // 2
    ink = paper.crop((edge, edge, edge + SIDE, edge + SIDE)).filter(ImageFilter.GaussianBlur(chance.uniform(0, 1.3)))
    return _develop(np.asarray(ink, dtype=np.float32) / 255, chance)


@lru_cache(maxsize=512)
def _font(font: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font, size)


def _page(font: ImageFont.FreeTypeFont, size: int, chance: random.Random) -> Image.Image:
    """Lines of text, white on black, on a page larger than the picture so that it can be turned."""
    side = SIDE * 3 // 2
    page = Image.new("L", (side, side), 0)
    pen = ImageDraw.Draw(page)
    leading = size * chance.uniform(1.1, 1.8)
    height = chance.uniform(-leading, 0)
    while height < side:
        pen.text((chance.uniform(-size, 0), height), _line(chance, side // size * 3), fill=255, font=font)
        height += leading
    return page


def _line(chance: random.Random, letters: int) -> str:
    words: list[str] = []
    while sum(map(len, words)) < letters:
        word = "".join(chance.choice(LETTERS) for _ in range(chance.randint(2, 9)))
        words.append(chance.choice([word, word, word, word.capitalize(), word.upper(), str(chance.randint(0, 9999))]))
    return " ".join(words)


def _develop(ink: "np.ndarray[Any, Any]", chance: random.Random) -> Image.Image:
    """Gives ink and paper their colours, a shadow and grain."""
    noise = np.random.default_rng(chance.getrandbits(64))
    light, dark = noise.uniform(0.55, 1.0, 3), noise.uniform(0.0, 0.45, 3)
    paper, print_ = (dark, light) if chance.random() < 0.3 else (light, dark)
    picture = paper + ink[..., None] * (print_ - paper)
    down, right = np.mgrid[0:SIDE, 0:SIDE] / SIDE - 0.5
    angle, depth = chance.uniform(0, 2 * np.pi), chance.uniform(0, 0.5)
    shade = 1 + depth * (np.cos(angle) * down + np.sin(angle) * right)
    grain = chance.uniform(0.01, 0.1) * noise.standard_normal(picture.shape, dtype=np.float32)
    return Image.fromarray(np.clip(255 * (picture * shade[..., None] + grain), 0, 255).astype(np.uint8))

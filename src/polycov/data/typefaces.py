"""Typefaces: a built-in fine-grained task that needs no download, rendered from the fonts in matplotlib's wheel.

Twenty-one text faces of five families; several differ only in slant or weight. Each image shows a few lines of invented
words, so only the shapes of the letters can be learned: text, size, position, slope, colours, blur, noise and a
shadow over the page are random.
"""

import random
import string
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from polycov.data.images import ImageData, Samples, Split
from polycov.errors import PolycovError, require_module

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
PER_CLASS: dict[Split, int] = {"train": 40, "test": 40}
SIZE = 256
SEEN = (38, 346)  # of a page 384 pixels wide, after it was rotated by at most 12 degrees and cut to the size
VERSION = 1  # of the images: another version draws others
LETTERS = string.ascii_lowercase + "eeeeaaooiittnnrrss"

Item = tuple[Split, str, int]  # split, face, index


@dataclass(frozen=True)
class Typefaces:
    """Images drawn on demand. The same item always gives the same image, on every machine."""

    fonts: Path
    always_readable = True

    def open(self, item: Item) -> Image.Image:
        """Draws an image."""
        split, face, index = item
        return draw(str(self.fonts / FACES[face]), random.Random(f"{VERSION} {split} {face} {index}"))

    def name(self, item: Item) -> str:
        """Split, face and index."""
        return f"{item[0]}/{item[1]}/{item[2]:03d}.png"

    def stamp(self, item: Item) -> str:
        """The version of the images."""
        return f"version {VERSION}"


def read_typefaces() -> ImageData:
    """Returns the built-in task.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
        PolycovError: if one of its fonts is missing.
    """
    sentence = "The typefaces need the fonts of matplotlib. Install it with: pip install 'polycov[cli]'"
    matplotlib = require_module("matplotlib", sentence)
    source = Typefaces(Path(matplotlib.get_data_path()) / "fonts" / "ttf")
    missing = [file for file in FACES.values() if not (source.fonts / file).is_file()]
    if missing:
        raise PolycovError(f"Fonts of matplotlib are missing in {str(source.fonts)!r}: {', '.join(missing)}.")
    splits = {}
    for split, count in PER_CLASS.items():
        items = [(split, face, index) for face in FACES for index in range(count)]
        splits[split] = Samples(source, items, [label for label in range(len(FACES)) for _ in range(count)])
    return ImageData("typefaces", list(FACES), splits, size=SIZE)


def draw(font: str, rng: random.Random) -> Image.Image:
    """Draws an image of text in a font."""
    font_size = rng.randint(15, 30)
    page = _draw_page(_load_font(font, font_size), font_size, rng)
    page = page.rotate(rng.uniform(-12, 12), Image.Resampling.BICUBIC)
    edge = (page.width - SIZE) // 2
    ink = page.crop((edge, edge, edge + SIZE, edge + SIZE)).filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.3)))
    return _colour(np.asarray(ink, dtype=np.float32) / 255, rng)


@lru_cache(maxsize=512)
def _load_font(font: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font, size)


def _draw_page(font: ImageFont.FreeTypeFont, font_size: int, rng: random.Random) -> Image.Image:
    """Lines of text, white on black, on a page larger than the image so that it can be rotated."""
    side = SIZE * 3 // 2
    page = Image.new("L", (side, side), 0)
    pen = ImageDraw.Draw(page)
    leading = font_size * rng.uniform(1.1, 1.8)
    y = rng.uniform(-leading, 0)
    while y < side:
        x, line = rng.uniform(-font_size, 0), _random_line(rng, side // font_size * 3)
        if SEEN[0] - 3 * font_size < y < SEEN[1] + font_size:
            pen.text((x, y), line[: _letters_within(font, line, SEEN[1] + 2 * font_size - x)], fill=255, font=font)
        y += leading
    return page


def _letters_within(font: ImageFont.FreeTypeFont, line: str, width: float) -> int:
    """How many letters of a line are seen: drawing one takes longer than adding up their widths."""
    return sum(end < width for end in accumulate(_width(font, letter) for letter in line))


@lru_cache(maxsize=32768)
def _width(font: ImageFont.FreeTypeFont, letter: str) -> float:
    return font.getlength(letter)


def _random_line(rng: random.Random, letters: int) -> str:
    words: list[str] = []
    while sum(map(len, words)) < letters:
        word = "".join(rng.choice(LETTERS) for _ in range(rng.randint(2, 9)))
        words.append(rng.choice([word, word, word, word.capitalize(), word.upper(), str(rng.randint(0, 9999))]))
    return " ".join(words)


def _colour(ink: "np.ndarray[Any, Any]", rng: random.Random) -> Image.Image:
    """Gives ink and paper their colours, a shadow and grain."""
    noise = np.random.default_rng(rng.getrandbits(64))
    light, dark = noise.uniform(0.55, 1.0, 3), noise.uniform(0.0, 0.45, 3)
    background, foreground = (dark, light) if rng.random() < 0.3 else (light, dark)
    values = background + ink[..., None] * (foreground - background)
    y, x = _places()
    angle, depth = rng.uniform(0, 2 * np.pi), rng.uniform(0, 0.5)
    shade = 1 + depth * (np.cos(angle) * y + np.sin(angle) * x)
    grain = rng.uniform(0.01, 0.1) * noise.standard_normal(values.shape, dtype=np.float32)
    return Image.fromarray(np.clip(255 * (values * shade[..., None] + grain), 0, 255).astype(np.uint8))


@cache
def _places() -> "np.ndarray[Any, Any]":
    """How far each pixel is from the centre, down and to the right, over the size of the image."""
    places: np.ndarray[Any, Any] = np.mgrid[0:SIZE, 0:SIZE] / SIZE - 0.5
    return places

"""Images for benchmarks: generated ones, links to others, and enlarged ones."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from polycov.data.walk import list_images
from polycov.errors import PolycovError
from polycov.models.backends.frozen import FEW

LEAST = FEW  # with fewer, the backbone would be left to plain torch


def link_images(source: str | None, folder: Path, count: int) -> None:
    """Fills two class folders with links to images, evenly chosen, or with generated ones of 500 × 375 pixels.

    Args:
        source: folder of images; None to generate them.
        folder: where to put them.
        count: how many.

    Raises:
        PolycovError: if the folder has no images, or there would be too few.
    """
    if count < LEAST:
        raise PolycovError(f"Expected at least {LEAST} images, got --images {count}.")
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
    names = list_images(Path(source)) if source is not None else []
    if source is not None and not names:
        raise PolycovError(f"There are no images in {source!r}.")
    for i in range(count):
        target = folder / "ab"[i % 2] / f"{i:05d}.jpg"
        if source is None:
            _photograph(i).save(target, quality=90)
        else:
            target.symlink_to((Path(source) / names[i * len(names) // count]).resolve())


def _photograph(seed: int) -> Image.Image:
    """Smooth colours with some noise, whose JPEG takes about as long to decode as a photograph's."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = smooth + generator.integers(-12, 13, smooth.shape, dtype=np.int16)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def enlarged(image: Image.Image, pixels: int = 12_000_000) -> bytes:
    """Returns an image as JPEG, enlarged to this many pixels: about as many as a camera takes."""
    scale = (pixels / (image.width * image.height)) ** 0.5
    content = io.BytesIO()
    image.resize((round(scale * image.width), round(scale * image.height))).save(content, "JPEG", quality=90)
    return content.getvalue()

"""The one way to read an image: everything that decodes a file, or the bytes of one, goes through `read_image`."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps

from polycov.errors import PolycovError
from polycov.system.files import open_regular

# Explicit, because some of Pillow's decoders are dangerous: EPS starts another program.
FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PCX", "PNG", "PPM", "QOI", "TGA", "TIFF", "WEBP")
MAX_PIXELS = 2 * 89_478_485  # as Pillow: about 0.5 GB in RGB

Content = str | os.PathLike[str] | bytes | Image.Image
"""A path, the bytes of a file, or an image."""


class UnreadableImageError(PolycovError):
    """An image that cannot be read.

    Attributes:
        reason: why, in a few words.
        repairable: whether the file may become readable without a change to it: it is missing, or access is denied.
    """

    def __init__(self, name: str, reason: str, repairable: bool = False) -> None:
        super().__init__(f"Cannot read the image {name!r}: {reason}.")
        self.reason, self.repairable = reason, repairable


@cache
def image_extensions() -> tuple[str, ...]:
    """Returns the file extensions of images, in lower case."""
    Image.init()
    return tuple(sorted(ext for ext, kind in Image.registered_extensions().items() if kind in _formats()))


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def read_image(
    content: Content,
    name: str | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
    check: bool = False,
    least: int | None = None,
) -> Image.Image:
    """Returns an image in RGB, rotated according to its EXIF data, on white where transparent.

    Args:
        content: a path, the bytes of a file, or an image.
        name: for the error; by default the path.
        max_pixels: a larger image is refused before it is decoded.
        check: read the file to its end, but decode a JPEG at a small size, to check that it can be read.
        least: decode a JPEG at a half, a quarter or an eighth of its size, as long as no side is below this.

    Raises:
        UnreadableImageError: if it cannot be read, for any reason.
    """
    if name is None:
        name = os.fspath(content) if isinstance(content, str | os.PathLike) else "image"
    try:
        with _opened(content) as image:
            if image.width * image.height > max_pixels:
                limit = f"at most {max_pixels // 10**6} million are read"
                raise ValueError(f"it has {image.width} × {image.height} pixels; {limit}")
            if check or least:
                side = 64 if check else least or 0
                image.draft("RGB", (side, side))
            return _upright_rgb(image)
    except UnreadableImageError:
        raise
    except Exception as error:  # decoders raise many kinds on broken files
        repairable = isinstance(error, FileNotFoundError | PermissionError)
        raise UnreadableImageError(name, _reason(error), repairable) from error


@contextmanager
def _opened(content: Content) -> Iterator[Image.Image]:
    if isinstance(content, Image.Image):
        yield content
        return
    opened = io.BytesIO(content) if isinstance(content, bytes) else open_regular(Path(content))
    with opened as file, Image.open(file, formats=_formats()) as image:
        yield image


def _upright_rgb(image: Image.Image) -> Image.Image:
    image.load()
    turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
    upright = _eight_bits(ImageOps.exif_transpose(image) if turned else image)  # it would copy an image that is upright
    if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
        upright = upright.convert("RGBA")
        white = Image.new("RGBA", upright.size, "white")
        upright = Image.alpha_composite(white, upright)
    return upright if upright.mode == "RGB" else upright.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scales an image of 16 or 32 bits per channel to 8 bits; Pillow's own conversion would clip it."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image, dtype=np.float64)
    largest = float(values.max(initial=0))
    scales = (1.0, 255.0) if image.mode == "F" else (255.0, 65535.0)
    scale = next((scale for scale in scales if largest <= scale), None)
    if scale is None or not values.min(initial=0) >= 0:
        raise ValueError(f"expected values from 0 to {scales[-1]:g}, got {values.min():g} to {largest:g}")
    scale = 65535.0 if image.mode.startswith("I;16") else scale
    return Image.fromarray(np.round(values * (255 / scale)).astype(np.uint8))


def _reason(error: Exception) -> str:
    """A short reason; Pillow's own would repeat the whole path."""
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    text = str(getattr(error, "strerror", None) or error).partition("\n")[0].rstrip(".")
    return "it is not an image" if "cannot identify" in text else text or f"it is broken ({type(error).__name__})"

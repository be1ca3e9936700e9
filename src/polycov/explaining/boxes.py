"""Where the object is: bounding boxes, and how much of the evidence lies inside."""

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from polycov.data.images import Files, Samples
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.system.files import read_lines


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels of the original image."""

    left: float
    top: float
    width: float
    height: float


def find_boxes(samples: Samples) -> dict[str, Box]:
    """Returns the boxes of images by name, if they are files of CUB-200-2011 as published; empty otherwise.

    Raises:
        PolycovError: if its files cannot be read.
    """
    source = samples.source
    if not isinstance(source, Files):
        return {}
    images, boxes = source.root / "images.txt", source.root / "bounding_boxes.txt"
    if not (images.is_file() and boxes.is_file()):
        return {}
    names = {key: rest[0] for key, *rest in _lines(images, 2)}
    try:
        return {f"images/{names[key]}": Box(*map(float, rest)) for key, *rest in _lines(boxes, 5)}
    except (KeyError, ValueError) as error:
        raise PolycovError(f"Cannot read the boxes of {str(boxes)!r}: {error}.") from error


def _lines(path: Path, columns: int) -> list[list[str]]:
    lines = [line.split(maxsplit=columns - 1) for line in read_lines(path)]
    wrong = next((line for line in lines if len(line) != columns), None)
    if wrong is not None:
        raise PolycovError(f"Expected lines of {columns} columns in {path.name!r}, got {' '.join(wrong)!r}.")
    return lines


def box_cover(box: Box, size: tuple[int, int], preprocessing: Preprocessing, grid: tuple[int, int]) -> Tensor:
    """Returns the share of each cell that lies inside a box, (height, width), after resizing and cropping.

    Args:
        box: in the original image.
        size: width and height of the original image.
        preprocessing: of the images.
        grid: height and width of the local feature map.
    """
    drawn = Image.new("RGB", size)  # prepared like the image itself
    corner = (round(box.left + box.width) - 1, round(box.top + box.height) - 1)
    ImageDraw.Draw(drawn).rectangle([(round(box.left), round(box.top)), corner], fill="white")
    prepared = preprocessing(drawn)[:1] * preprocessing.std[0] + preprocessing.mean[0]
    return torch.nn.functional.adaptive_avg_pool2d(prepared.clamp(0, 1), grid)[0]


def share_inside(contributions: Tensor, cover: Tensor) -> float | None:
    """Returns the share of the positive evidence inside a box; None if there is no positive evidence.

    Example:
        >>> share_inside(torch.tensor([[3.0, 1.0, -2.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
        0.75
    """
    positive = contributions.double().clamp(min=0)
    total = float(positive.sum())
    return float((positive * cover).sum()) / total if total > 0 else None

"""Small images for tests: classes of stripes that differ in direction and colour, with noise."""

from pathlib import Path

import numpy as np
from PIL import Image


def make_image(label: int, index: int, side: int = 40) -> Image.Image:
    rng = np.random.default_rng([label, index])
    y, x = np.mgrid[0:side, 0:side]
    angle = label * np.pi / 3 + rng.uniform(-0.2, 0.2)
    stripes = np.sin((np.cos(angle) * y + np.sin(angle) * x) / 2 + rng.uniform(0, 6))
    colour = np.array([1.0, 0.5 + 0.1 * label, 0.3])
    values = 128 + 80 * stripes[..., None] * colour + rng.normal(0, 20, (side, side, 3))
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def write_classes(folder: Path, classes: list[str], count: int, first: int = 0, extension: str = "jpg") -> Path:
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(first, first + count):
            make_image(label, index).save(folder / name / f"{index:03d}.{extension}")
    return folder


def write_data(folder: Path, classes: int = 3, train: int = 10, test: int = 4) -> Path:
    names = ["ash", "birch", "cedar", "dogwood"][:classes]
    write_classes(folder / "train", names, train)
    write_classes(folder / "test", names, test, first=train)
    return folder

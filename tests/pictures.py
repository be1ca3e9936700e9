"""Small pictures for tests: classes of stripes that differ in direction and colour, with noise."""

from pathlib import Path

import numpy as np
from PIL import Image


def picture(label: int, number: int, side: int = 40) -> Image.Image:
    noise = np.random.default_rng([label, number])
    down, right = np.mgrid[0:side, 0:side]
    angle = label * np.pi / 3 + noise.uniform(-0.2, 0.2)
    stripes = np.sin((np.cos(angle) * down + np.sin(angle) * right) / 2 + noise.uniform(0, 6))
    colour = np.array([1.0, 0.5 + 0.1 * label, 0.3])
    values = 128 + 80 * stripes[..., None] * colour + noise.normal(0, 20, (side, side, 3))
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def write_classes(folder: Path, classes: list[str], count: int, start: int = 0, kind: str = "jpg") -> Path:
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(start, start + count):
            picture(label, number).save(folder / name / f"{number:03d}.{kind}")
    return folder


def write_data(folder: Path, classes: int = 3, train: int = 10, test: int = 4) -> Path:
    names = ["ash", "birch", "cedar", "dogwood"][:classes]
    write_classes(folder / "train", names, train)
    write_classes(folder / "test", names, test, start=train)
    return folder

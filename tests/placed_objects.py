"""Images with one object at a known place, in the layout of CUB-200-2011: python tests/placed_objects.py FOLDER"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from polycov.explaining.boxes import Box


def make_placed(label: int, index: int, side: int = 320) -> tuple[Image.Image, Box]:
    """A patch of stripes, whose direction is the class, on a background of smooth colours and noise."""
    rng = np.random.default_rng([label, index])
    small = rng.integers(60, 200, (5, 5, 3)).astype(np.uint8)
    background = np.asarray(Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC)).astype(float)
    width, height = (int(side * rng.uniform(0.25, 0.45)) for _ in range(2))
    left, top = (int(rng.uniform(0, side - extent)) for extent in (width, height))
    y, x = np.mgrid[0:height, 0:width]
    angle = label * np.pi / 4 + rng.uniform(-0.15, 0.15)
    stripes = np.sin((np.cos(angle) * y + np.sin(angle) * x) / (side / 80) + rng.uniform(0, 6))
    background[top : top + height, left : left + width] += 70 * stripes[..., None]
    pixels = np.clip(background + rng.normal(0, 12, background.shape), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels), Box(left, top, width, height)


def write_placed(folder: Path, classes: int = 4, train: int = 30, test: int = 25, side: int = 320) -> Path:
    """Writes images with the tables of CUB-200-2011: names, classes, split, boxes."""
    tables: dict[str, list[str]] = {name: [] for name in ("images", "image_class_labels", "train_test_split")}
    tables |= {"classes": [f"{label + 1} stripes-{45 * label}" for label in range(classes)], "bounding_boxes": []}
    for label in range(classes):
        (folder / "images" / str(label)).mkdir(parents=True)
        for index in range(train + test):
            image, box = make_placed(label, index, side)
            name, key = f"{label}/{index:03d}.png", label * (train + test) + index + 1
            image.save(folder / "images" / name)
            tables["images"].append(f"{key} {name}")
            tables["image_class_labels"].append(f"{key} {label + 1}")
            tables["train_test_split"].append(f"{key} {int(index < train)}")
            tables["bounding_boxes"].append(f"{key} {box.left} {box.top} {box.width} {box.height}")
    for name, lines in tables.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


if __name__ == "__main__":
    write_placed(Path(sys.argv[1]))

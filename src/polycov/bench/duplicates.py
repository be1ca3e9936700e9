"""Duplicates: at which cosine copies of an image are told from other images."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polycov.bench.tables import Row
from polycov.data.read import read_splits
from polycov.errors import PolycovError
from polycov.inference.embed import embed
from polycov.inference.similarity import unit_rows
from polycov.progress import SILENT, Progress

METHODS = ("average", "isqrt-cov", "ipccp-ts 512")
SPEC = "[average, covariance | sqrt(5) | triu, covariance | sqrt(5) | tensor_sketch(512)]"  # in one pass
THRESHOLDS = (0.9, 0.93, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 0.999)
COPIES = ("recompressed", "half size", "cropped")


def duplicate_thresholds(data: str, images: int, progress: Progress = SILENT) -> Iterator[Row]:
    """Yields a row for each method and threshold: precision over all pairs, and recall for each kind of copy.

    A pair of an image and a copy of it, or of two copies, counts as a duplicate; any other pair does not.

    Args:
        data: images, as for train; their classes do not matter.
        images: how many, chosen by a seed.
        progress: receives what is done.

    Raises:
        PolycovError: if there are fewer images.
    """
    samples = read_splits(data).all_samples()
    if len(samples) < images:
        raise PolycovError(f"Expected {images} images in {data!r}, got {len(samples)}.")
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:images].tolist()
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for number, index in enumerate(order):
            write_copies(root / "images", number, samples.image(index))
        names, features = embed(SPEC, root / "images", root / "features", progress=progress).load()
        for method, part in zip(METHODS, _parts(torch.from_numpy(features)), strict=True):
            yield from thresholds(method, [Path(name).stem for name in names], part)


def _parts(features: Tensor) -> Sequence[Tensor]:
    """The features of each method: C numbers, C(C + 1)/2 numbers, and 512."""
    triangle_and_mean = features.shape[1] - 512
    channels = round((8 * triangle_and_mean + 9) ** 0.5 - 3) // 2  # C + C(C + 1)/2 of them
    return features.split([channels, triangle_and_mean - channels, 512], 1)


def write_copies(folder: Path, number: int, image: Image.Image) -> None:
    """Writes an image and what people do to images: JPEG of quality 50, half the size, 5 % cut off at every side."""
    width, height = image.size
    dx, dy = round(0.05 * width), round(0.05 * height)
    small = image.resize((max(width // 2, 1), max(height // 2, 1)), Image.Resampling.BICUBIC)
    versions = dict(
        zip(COPIES, (_recompressed(image), small, image.crop((dx, dy, width - dx, height - dy))), strict=True)
    )
    folder.mkdir(parents=True, exist_ok=True)
    for kind, version in {"original": image, **versions}.items():
        version.save(folder / f"{number:05d}-{kind}.png", compress_level=1)


def _recompressed(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=50)
    return Image.open(file).convert("RGB")


def thresholds(method: str, names: Sequence[str], features: Tensor) -> Iterator[Row]:
    """Yields precision and recall for each threshold; names are NUMBER-KIND."""
    units = unit_rows(features)
    numbers = torch.tensor([int(name.partition("-")[0]) for name in names])
    kinds = np.array([name.partition("-")[2] for name in names])
    cosines = units @ units.mT
    same = numbers[:, None] == numbers
    pairs = torch.ones_like(same).triu(1)
    original = torch.from_numpy(kinds == "original")
    for threshold in THRESHOLDS:
        alike = (cosines >= threshold) & pairs
        right = int((alike & same).sum())
        row: Row = {"method": method, "threshold": threshold}
        row["precision"] = right / max(int(alike.sum()), 1)
        row["recall"] = right / int((same & pairs).sum())
        for kind in COPIES:
            copies = same & original[:, None] & torch.from_numpy(kinds == kind)
            row[f"recall, {kind}"] = float((cosines[copies] >= threshold).double().mean())
        row["false pairs"] = int((alike & ~same).sum())
        yield row

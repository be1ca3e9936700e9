"""A straightforward script, as one writes it with timm and a DataLoader, for comparison: ``python -m`` starts it.

After the first batches, it prints images per second and CPU milliseconds per image. Of polycov, it uses only the
weights.
"""

import resource
import sys
import time
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from polycov.models.backbones import Backbone, import_timm


class Images(Dataset[Tensor]):
    """Image files, transformed."""

    def __init__(self, folder: Path, transform: object) -> None:
        self.files, self.transform = sorted(folder.rglob("*.*")), transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB"))  # type: ignore[operator]


def main(folder: str, name: str, size: int, batch: int, workers: int, threads: int, first: int) -> None:
    """Computes averages of the last maps of all images in a folder."""
    torch.set_num_threads(threads)
    network = Backbone(name, weights="auto", size=size).network.eval()
    config = import_timm().data.resolve_data_config({}, model=network) | {
        "input_size": (3, size, size),
        "crop_pct": 1.0,
    }
    images = Images(Path(folder), import_timm().data.create_transform(**config))
    features, moments, cpu = [], [], []
    with torch.no_grad():
        for x in DataLoader(images, batch_size=batch, num_workers=workers):
            features.append(network.forward_features(x).mean((2, 3)).numpy())
            moments.append(time.perf_counter())
            cpu.append(time.process_time())
    later = len(images) - first * batch
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)  # of those who read images
    seconds = (cpu[-1] - cpu[first - 1]) / later + (usage.ru_utime + usage.ru_stime) / len(images)
    print(later / (moments[-1] - moments[first - 1]), 1e3 * seconds)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))

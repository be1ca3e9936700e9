"""Comparing on features ten times as large as the memory of a process: peak, and time."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from polycov.bench.tables import Row
from polycov.comparing.grid import Setting
from polycov.comparing.measure import measure_frozen
from polycov.comparing.protocols.classifiers import ProbeProtocol
from polycov.comparing.reduced_features import ReducedFeatures
from polycov.data.feature_store import FeatureStore
from polycov.data.images import Files, ImageData, Samples
from polycov.errors import PolycovError
from polycov.progress import SILENT, Progress
from polycov.system.memory_budget import Memory
from polycov.training.extraction import Extracted

LOCATIONS, WIDTH, CLASSES = 1024, 64, 20  # of generated tokens: 131 KB of float16 for each image
IMAGES = 163_840  # 21.5 GB
LIMIT, BUDGET = 2**31, "128MB"  # of the process; of its features and matrices
CHANNELS = 32
SPECS = ("average", "covariance | sqrt(5) | triu")
BATCH, SHARD = 256, 1024  # images
GROUP = 10 * SHARD  # images whose features are stored once: ten names of one file


def memory(share: float = 1.0, folder: Path | None = None, progress: Progress = SILENT) -> Iterator[Row]:
    """Yields a row for each step: seconds, and the peak of memory of the process that did all of them.

    Local features are generated and stored, 21.5 GB of them; each shard has ten names, so that they take 2.1 GB of disk
    and the process that reads them waits for itself, not for the disk. Another process, which may not have
    more than 2 GB of data (``RLIMIT_DATA``), then judges an average and a square root by probes, as `polycov.compare`
    does, with a budget of 128 MB. What it may not keep of the features, it reads again or writes to a file.

    Args:
        share: of the images.
        folder: for the store; default: a temporary one. It is removed at the end.
        progress: receives the progress of generating features.
    """
    count = max(int(share * IMAGES), 40 * CLASSES)
    with TemporaryDirectory(dir=folder) as scratch:
        start = time.perf_counter()
        store = generate_store(Path(scratch), count, progress)
        size = store.bytes_per_image * count
        yield _row("generate", count, size, time.perf_counter() - start)
        program = [sys.executable, "-m", "polycov.bench.memory", scratch, str(count), str(LIMIT), BUDGET]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                step = json.loads(line)
                progress.message(f"{step['what']}: {step['seconds']:.0f} s, at most {step['peak']:.0f} MiB")
                yield _row(step["what"], count, size, step["seconds"], step["accuracy"], step["peak"])
        if process.returncode:
            raise PolycovError(f"The process with {LIMIT / 2**30:.0f} GB of memory failed; its message is above.")


def _row(
    what: str, images: int, size: int, seconds: float, accuracy: float | None = None, peak: float | None = None
) -> Row:
    return {
        "what": what,
        "images": images,
        "gigabytes": size / 1e9,
        "seconds": seconds,
        "test_accuracy": accuracy,
        "peak_mib": peak,
    }


def generated_data(count: int) -> ImageData:
    """Returns images that do not exist, with labels: two thirds for training, a sixth each for validation and test."""
    names, labels = [f"{i:07d}" for i in range(count)], [i % SHARD % CLASSES for i in range(count)]
    every = Samples(Files(Path()), names, labels)
    step = GROUP if count >= 6 * GROUP else 1  # no group is in two splits
    first, second = (share * count // 6 // step * step for share in (4, 5))
    splits = {"train": range(first), "val": range(first, second), "test": range(second, count)}
    chosen = {split: every.select(indices) for split, indices in splits.items()}
    return ImageData("generated", [str(c) for c in range(CLASSES)], chosen)  # type: ignore[arg-type]


def open_store(cache: Path, count: int, progress: Progress = SILENT) -> FeatureStore:
    """Opens the store of this many generated images."""
    names = [f"{i:07d}" for i in range(count)]
    return FeatureStore.open(
        cache, {"backbone": "generated"}, names, (LOCATIONS, WIDTH), shard_size=SHARD, progress=progress
    )


def generate_store(cache: Path, count: int, progress: Progress = SILENT) -> FeatureStore:
    """Stores tokens whose channels are correlated in another way for each class: noise, mixed by its matrix.

    The noise of one batch is used for all, shuffled among its images; each has a mean of its own.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(BATCH, LOCATIONS, WIDTH, generator=generator)
    mixing = torch.eye(WIDTH) + 0.02 * torch.randn(CLASSES, WIDTH, WIDTH, generator=generator)
    store = open_store(cache, count)
    with progress.task("generating features", count) as task:
        for begin in range(0, count, BATCH):
            indices, original = range(begin, min(begin + BATCH, count)), begin // GROUP * GROUP
            if begin < original + SHARD or begin // SHARD == count // SHARD:
                store.write(indices, _tokens(noise, mixing, indices, generator))
            elif begin % SHARD == 0:
                store.repeat(begin, original)
            task.advance(len(indices))
    return store


def _tokens(noise: Tensor, mixing: Tensor, indices: range, generator: torch.Generator) -> Tensor:
    order = torch.randperm(len(noise), generator=generator)[: len(indices)]
    mixed = noise[order] @ mixing[[i % SHARD % CLASSES for i in indices]]
    return mixed.add_(torch.randn(len(indices), 1, WIDTH, generator=generator))


def judge(cache: Path, count: int, budget: Memory) -> Iterator[Row]:
    """Yields accuracy, seconds and peak memory of each spec, fitted and judged by a probe on generated features."""
    reduced, data = ReducedFeatures(Extracted(open_store(cache, count)), budget), generated_data(count)
    for spec in SPECS:
        start = time.perf_counter()
        found = measure_frozen(Setting(spec, None, 0), data, reduced, CHANNELS, ProbeProtocol())
        yield {
            "what": f"{spec}, {found.dimensions} dimensions",
            "seconds": time.perf_counter() - start,
            "accuracy": found.test_accuracy,
            "strength": found.strength,
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


if __name__ == "__main__":
    folder, count, limit, size = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
    for step in judge(Path(folder), int(count), Memory.of(size, Path(folder))):
        print(json.dumps(step), flush=True)

"""Local features of a frozen backbone, computed once and kept on disk."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from polycov.data.images import ImageData, Samples
from polycov.data.loading import load
from polycov.data.transforms import Preprocessing
from polycov.errors import NonFiniteError
from polycov.models.backbones import Backbone
from polycov.progress import ticking
from polycov.system.files import try_lock, wait_for_lock, write_json


class LocalFeatures:
    """Local features of all pictures of a data set in a file on disk, by the names of the pictures.

    Attributes:
        array: (pictures, ...), float16, mapped from disk.
        rows: the row of each name.
    """

    def __init__(self, array: np.ndarray, names: Sequence[str]) -> None:
        self.array = array
        self.rows = {name: i for i, name in enumerate(names)}

    @property
    def channels(self) -> int:
        """C, of the features."""
        return int(self.array.shape[1 if self.array.ndim == 4 else 2])

    @property
    def locations(self) -> int:
        """N, of the features."""
        return int(np.prod(self.array.shape[1:])) // self.channels

    def of(self, samples: Samples, indices: Sequence[int]) -> Tensor:
        """Returns the features of some pictures in float32: maps (B, C, H, W), or tokens (B, N, C)."""
        rows = [self.rows[samples.name(i)] for i in indices]
        return torch.from_numpy(np.array(self.array[rows], dtype=np.float32))

    def batches(self, samples: Samples, batch: int = 64) -> Iterator[Tensor]:
        """Yields the features of pictures in order."""
        for start in range(0, len(samples), batch):
            yield self.of(samples, range(start, min(start + batch, len(samples))))


def digest(module: nn.Module) -> str:
    """Returns a digest of the weights of a module."""
    total = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def extract(
    backbone: Backbone,
    data: ImageData,
    preprocessing: Preprocessing,
    cache: Path,
    console: Console,
    *,
    batch: int = 16,
    workers: int = 2,
    device: str | torch.device = "cpu",
    rank: int = 0,
    world: int = 1,
) -> LocalFeatures:
    """Computes the local features of all pictures, or takes them from the cache.

    The cache is keyed by the backbone, its weights, the pictures and their preparation: a change of any makes another
    file. A run that was stopped goes on where it was. Several processes share the work.

    Args:
        backbone: to compute with; its mode is left as it was.
        data: whose pictures; how they are split plays no part.
        preprocessing: of the pictures, as in evaluation.
        cache: folder of the cache.
        console: to show progress on.
        batch: pictures at a time.
        workers: processes that prepare pictures.
        device: to compute on.
        rank: of this process among those that share the work.
        world: how many they are.

    Raises:
        NonFiniteError: if a feature is not finite, or too large for float16.
    """
    whole = data.everything()
    key = {
        "backbone": backbone.name,
        "stage": backbone.stage,
        "last_stride": backbone.last_stride,
        "weights": digest(backbone),
        "pictures": data.fingerprint(stamps=True),
        "preprocessing": preprocessing.key(),
        "dtype": "float16",
    }
    folder = cache / "features" / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    was_training = backbone.training
    backbone.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    try:
        shape = (len(whole), *_shape(backbone, preprocessing.size, device))
        if rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            with wait_for_lock(folder / "files.lock"):  # another program may want the same features at this moment
                if not _whole_files(folder, shape):
                    _make_files(folder, key, shape)
        _wait()
        array, done = (np.lib.format.open_memmap(folder / name, "r+") for name in ("features.npy", "done.npy"))
        mine = [i for i in range(rank, len(whole), world) if not done[i]]
        batches = [mine[i : i + batch] for i in range(0, len(mine), batch)]
        with ticking(console, f"local features of {backbone.name}", len(mine)) as tick, torch.inference_mode():
            pending: list[int] = []
            saved = time.monotonic()
            for images, _, numbers in load(whole, preprocessing, batches, workers):
                features = backbone(images.to(device, memory_format=torch.channels_last)).half().cpu()
                finite = features.flatten(1).isfinite().all(1)
                if not bool(finite.all()):
                    names = [whole.name(int(i)) for i in numbers[~finite]]
                    raise NonFiniteError(f"{backbone.name} gives NaN, Inf or more than 65504 for {', '.join(names)}.")
                array[numbers.numpy()] = features.numpy()
                pending += numbers.tolist()
                tick(len(numbers))
                if time.monotonic() - saved > 10 or numbers[-1] == mine[-1]:
                    array.flush()
                    done[pending] = 1  # only when the features are on the disk
                    done.flush()
                    pending, saved = [], time.monotonic()
    finally:
        backbone.train(was_training)
    _wait()
    return LocalFeatures(array, [whole.name(i) for i in range(len(whole))])


@torch.inference_mode()
def _shape(backbone: Backbone, size: int, device: str | torch.device) -> tuple[int, ...]:
    return tuple(backbone(torch.zeros(1, 3, size, size, device=device)).shape[1:])


def _whole_files(folder: Path, shape: tuple[int, ...]) -> bool:
    """Whether the files are there, and as long as they should be."""
    try:
        found = [np.load(folder / name, mmap_mode="r").shape for name in ("features.npy", "done.npy")]
    except (OSError, ValueError):
        return False
    return found == [shape, shape[:1]]


def _make_files(folder: Path, key: dict[str, Any], shape: tuple[int, ...]) -> None:
    """Makes the files of the features, and of which of them are done: none."""
    write_json(folder / "key.json", key)
    features = folder / "features.npy"
    np.lib.format.open_memmap(features, "w+", np.float16, shape).flush()
    with features.open("rb+") as file:  # a full disk is to say so here, not to kill a process that writes
        getattr(os, "posix_fallocate", lambda *_: None)(file.fileno(), 0, features.stat().st_size)
    np.lib.format.open_memmap(folder / "done.npy", "w+", np.uint8, shape[:1]).flush()


def _wait() -> None:
    """Waits for the other processes, if there are any."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()

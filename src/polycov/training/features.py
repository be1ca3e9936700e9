"""Extraction: local features of a frozen backbone, computed once and kept in a `FeatureStore`."""

from pathlib import Path

import torch

from polycov.data.feature_store import FeatureStore
from polycov.data.images import ImageData
from polycov.data.loading import load_batches
from polycov.data.transforms import Preprocessing
from polycov.models.backbones import Backbone
from polycov.models.modes import evaluation_mode
from polycov.models.tensors import digest
from polycov.progress import SILENT, Progress
from polycov.training.config import NetworkOptions


def build_backbone(options: NetworkOptions, size: int) -> Backbone:
    """Makes a backbone; random weights (``weights="none"``) are the same in every process."""
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        torch.manual_seed(0)
        stage = None if options.stage == "last" else options.stage
        return Backbone(
            options.backbone, weights=options.weights, stage=stage, last_stride=options.last_stride, size=size
        )


def extract_features(
    backbone: Backbone,
    data: ImageData,
    preprocessing: Preprocessing,
    cache: Path,
    *,
    batch_size: int = 16,
    workers: int = 2,
    device: torch.device | None = None,
    rank: int = 0,
    world: int = 1,
    progress: Progress = SILENT,
) -> FeatureStore:
    """Computes the local features of all images, or takes them from the cache.

    The cache is keyed by the backbone, its weights, the images and their preprocessing: a change of any leads to
    another folder. An interrupted extraction resumes. Several processes share the work.

    Args:
        backbone: backbone to compute with; its mode is restored.
        data: dataset whose images to use; its splits play no part.
        preprocessing: preprocessing of the images, as in evaluation.
        cache: folder of the cache.
        batch_size: images per batch.
        workers: processes that read images.
        device: device to compute on; default CPU.
        rank: rank of this process among those that share the work.
        world: the number of these processes.
        progress: receives the number of images done.

    Raises:
        NonFiniteError: if a feature is not finite, or too large for float16.
    """
    samples, device = data.all_samples(), device or torch.device("cpu")
    identity = {
        "backbone": backbone.name,
        "stage": backbone.stage,
        "last_stride": backbone.last_stride,
        "weights": digest(backbone.state_dict()),
        "images": data.fingerprint(stamps=True),
        "preprocessing": preprocessing.identity(),
    }
    names = [samples.name(i) for i in range(len(samples))]
    backbone.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    with evaluation_mode(backbone), torch.inference_mode():
        shape = tuple(backbone(torch.zeros(1, 3, preprocessing.size, preprocessing.size, device=device)).shape[1:])
        if rank > 0:
            _barrier()  # the first process prepares the folder
        store = FeatureStore.open(cache, identity, names, shape, progress=progress)
        if rank == 0:
            _barrier()
        missing = store.missing(rank, world)
        batches = [missing[i : i + batch_size] for i in range(0, len(missing), batch_size)]
        with progress.task(f"extracting features with {backbone.name}", len(missing)) as task:
            for images, _, indices in load_batches(samples, preprocessing, batches, workers):
                features = backbone(images.to(device, memory_format=torch.channels_last)).half().cpu()
                store.write(indices.tolist(), features)
                task.advance(len(indices))
            store.flush()
    _barrier()
    return store


def _barrier() -> None:
    """Waits for the other processes, if there are any."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()

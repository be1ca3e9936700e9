"""The training images of a run that are nearest to an image in the pooled feature."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from polycov.data.images import ImageData
from polycov.data.read import read_data
from polycov.errors import PolycovError
from polycov.models.model import Model
from polycov.models.modes import evaluation_mode
from polycov.models.tensors import digest, load_tensors, save_tensors
from polycov.progress import SILENT, Progress
from polycov.system.files import cache_folder
from polycov.training.batches import BatchSource, FeatureBatches, ImageBatches
from polycov.training.features import extract_features
from polycov.training.run_folder import Run

BATCH_SIZE = 32
LIMIT = 2000


@dataclass(frozen=True)
class Neighbour:
    """A training image that is similar to an image.

    Attributes:
        name: of the training image.
        label: its class.
        image: as the network sees it, (3, H, W), values from 0 to 1.
        similarity: the cosine of the angle between the pooled features.
    """

    name: str
    label: str
    image: Tensor
    similarity: float


class TrainingImages:
    """Training images of a run, with their pooled features.

    Args:
        model: of the run.
        data: of the run.
        indices: of the images, in ``data["train"]``.
        features: of length 1, (images, D).
    """

    def __init__(self, model: Model, data: ImageData, indices: list[int], features: Tensor) -> None:
        self.model, self.data, self.indices, self.features = model, data, indices, features

    @classmethod
    def open(cls, run: Run, *, limit: int = LIMIT, workers: int = 2, progress: Progress = SILENT) -> "TrainingImages":
        """Reads the training images of a run, and computes their features or takes them from the cache.

        Args:
            run: finished; features are computed on the device of its model.
            limit: how many images at most, spread evenly over the classes.
            workers: processes that read images.
            progress: receives the number of images done.

        Raises:
            PolycovError: if the images are not available, or one cannot be read.
        """
        split = run.config.split
        data = read_data(
            run.config.data,
            val_fraction=split.val_fraction,
            test_fraction=split.test_fraction,
            split_seed=split.split_seed,
            val_seed=split.val_seed,
        )
        indices = _spread(data, limit)
        file = _cache_file(run.model, data, indices)
        try:
            features = load_tensors(file)[0]["features"]
        except (PolycovError, KeyError):
            features = _features(run, data, indices, workers, progress)
            file.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(file, {"features": features}, {})
        return cls(run.model, data, indices, features.float())

    @torch.inference_mode()
    def nearest(self, images: Tensor, count: int = 6) -> list[list[Neighbour]]:
        """Returns the training images with the largest cosine similarity to each image, the most similar first.

        Args:
            images: prepared, (B, 3, H, W).
            count: training images per image.
        """
        with evaluation_mode(self.model):
            features = normalize(self.model.embed(images.to(self.model.device)).float().cpu())
        best = (features @ self.features.mT).topk(min(count, len(self.indices)))
        return [
            [self._neighbour(row, value) for row, value in zip(rows, values, strict=True)]
            for rows, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _neighbour(self, row: int, similarity: float) -> Neighbour:
        train, index = self.data["train"], self.indices[row]
        show = replace(self.model.preprocessing, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        label = self.data.classes[train.labels[index]]
        return Neighbour(train.name(index), label, show(train.image(index)), similarity)


def _spread(data: ImageData, limit: int) -> list[int]:
    """The indices of at most ``limit`` training images, evenly over the classes."""
    train = data["train"]
    order = sorted(range(len(train)), key=lambda i: (train.labels[i], train.name(i)))
    count = min(limit, len(order))
    return [order[i * len(order) // count] for i in range(count)]


def _cache_file(model: Model, data: ImageData, indices: list[int]) -> Path:
    identity = [digest(model.state_dict()), model.preprocessing.identity(), data.fingerprint(stamps=True)]
    names = [data["train"].name(i) for i in indices]
    text = json.dumps([identity, names])
    return cache_folder() / "neighbours" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"


@torch.inference_mode()
def _features(run: Run, data: ImageData, indices: list[int], workers: int, progress: Progress) -> Tensor:
    """Features of length 1, in float16; from the local features in the cache if the backbone was frozen."""
    model = run.model
    frozen = run.config.training.probe or run.config.training.freeze
    source: BatchSource = ImageBatches(data, model.preprocessing, workers)
    if frozen:
        local = extract_features(
            model.backbone,
            data,
            model.preprocessing,
            cache_folder(),
            workers=workers,
            device=model.device,
            progress=progress,
        )
        source = FeatureBatches(data, local)
    batches = [indices[i : i + BATCH_SIZE] for i in range(0, len(indices), BATCH_SIZE)]
    features: list[Tensor] = []
    with evaluation_mode(model), progress.task("features of training images", len(indices)) as task:
        for x, _, read in source.batches("train", batches):
            x = x.to(model.device)
            pooled = model.pool(model.reduce(x)) if frozen else model.embed(x)
            features.append(normalize(pooled.float()).half().cpu())
            task.advance(len(read))
    return torch.cat(features)

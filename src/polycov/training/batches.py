"""Where a training takes its batches from: pictures, or local features computed before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from polycov.data.images import ImageData, Part
from polycov.data.loading import Batch, load
from polycov.data.transforms import Preprocessing
from polycov.models.model import Model
from polycov.training.features import LocalFeatures

Number = int | tuple[int, int]  # of a picture; with the seed of its augmentation in training


class Feed(Protocol):
    """Batches of a part of the data, by numbers: inputs, labels (B,), numbers (B,)."""

    data: ImageData

    def batches(self, part: Part, numbers: Sequence[Sequence[Number]]) -> Iterator[Batch]:
        """Yields the batches asked for."""


@dataclass
class PictureFeed:
    """Pictures, prepared beside the training; augmented where a number comes with a seed."""

    data: ImageData
    preprocessing: Preprocessing
    workers: int = 0

    def batches(self, part: Part, numbers: Sequence[Sequence[Number]]) -> Iterator[Batch]:
        """Yields images (B, 3, H, W), labels, numbers."""
        for images, labels, which in load(self.data[part], self.preprocessing, numbers, self.workers):
            yield images.contiguous(memory_format=torch.channels_last), labels, which  # the faster layout


@dataclass
class FeatureFeed:
    """Local features from disk; there is nothing to augment."""

    data: ImageData
    features: LocalFeatures

    def batches(self, part: Part, numbers: Sequence[Sequence[Number]]) -> Iterator[Batch]:
        """Yields local features, labels, numbers."""
        samples = self.data[part]
        for batch in numbers:
            plain = [number[0] if isinstance(number, tuple) else number for number in batch]
            labels = torch.tensor([samples.labels[i] for i in plain])
            yield self.features.of(samples, plain), labels, torch.tensor(plain)


class Head(nn.Module):
    """A model without its backbone: local features to logits."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.reduction, self.pool, self.classifier = model.reduction, model.pool, model.classifier
        self.classify = model.classify  # a bound method: the backbone is not registered here

    def forward(self, features: Tensor) -> Tensor:
        return self.classify(features)

"""Where training takes its batches from: images, or local features computed before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from polycov.data.feature_store import FeatureStore
from polycov.data.images import ImageData, Split
from polycov.data.loading import Batch, load_batches
from polycov.data.transforms import Preprocessing
from polycov.models.model import Model

Index = int | tuple[int, int]  # of an image; in training with the seed of its augmentation


class BatchSource(Protocol):
    """Batches of a split, by the indices of its images: inputs, labels (B,), indices (B,)."""

    data: ImageData

    def batches(self, split: Split, indices: Sequence[Sequence[Index]]) -> Iterator[Batch]:
        """Yields one batch for each list of indices."""


@dataclass
class ImageBatches:
    """Images, prepared in other processes; augmented where an index comes with a seed."""

    data: ImageData
    preprocessing: Preprocessing
    workers: int = 0

    def batches(self, split: Split, indices: Sequence[Sequence[Index]]) -> Iterator[Batch]:
        """Yields images (B, 3, H, W), labels, indices."""
        for images, labels, which in load_batches(self.data[split], self.preprocessing, indices, self.workers):
            yield images.contiguous(memory_format=torch.channels_last), labels, which  # the faster layout


@dataclass
class FeatureBatches:
    """Local features from disk, which are not augmented."""

    data: ImageData
    store: FeatureStore

    def batches(self, split: Split, indices: Sequence[Sequence[Index]]) -> Iterator[Batch]:
        """Yields local features, labels, indices."""
        samples = self.data[split]
        for batch in indices:
            plain = [index[0] if isinstance(index, tuple) else index for index in batch]
            labels = torch.tensor([samples.labels[i] for i in plain])
            yield self.store.features(samples, plain), labels, torch.tensor(plain)


class FeatureClassifier(nn.Module):
    """A model without its backbone: local features to logits."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.reduction, self.pool, self.classifier = model.reduction, model.pool, model.classifier
        self.classify = model.classify  # a bound method, so the backbone is not registered here

    def forward(self, features: Tensor) -> Tensor:
        return self.classify(features)

"""What all protocols have in common: they turn pooled features into a score for each image or episode."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from polycov.data.images import Split
from polycov.system.memory_budget import UNBOUNDED, Memory
from polycov.system.rows import Rows, read_blocks

Encode = Callable[[Tensor], Tensor]  # features (n, D) to what is left of them after storing


@dataclass(frozen=True)
class Pooled:
    """The pooled features of a setting.

    Attributes:
        features: by split, (n, D).
        labels: by split, (n,).
        classes: number of classes.
        seed: seed of the setting.
        unseen: whether validation and test classes are others than the training classes. Images are then compared with
            the others of their split.
        before: features of a pool that is fitted to the training images alone, on which validation images are judged;
            default: the same as ``features``, whose pool may have seen validation images.
        memory: what may be used of it.
    """

    features: Mapping[Split, Rows]
    labels: Mapping[Split, Tensor]
    classes: int
    seed: int = 0
    unseen: bool = False
    before: Mapping[Split, Rows] | None = None
    memory: Memory = UNBOUNDED

    def validation(self) -> "Pooled":
        """Returns what validation images are judged with."""
        return replace(self, features=self.before or self.features, before=None)

    def gallery(self, split: Split) -> tuple[Sequence[Rows] | None, Tensor | None]:
        """Returns features and labels of the images that those of a split are compared with.

        The training images, for test images also the validation images; None for the other images of the split.
        """
        if self.unseen:
            return None, None
        known: tuple[Split, ...] = ("train",) if split == "val" else ("train", "val")
        return [self.features[s] for s in known], torch.cat([self.labels[s] for s in known])

    def encoded(self, encode: Encode) -> "Pooled":
        """Returns the features as they are after storing them, for the test."""
        images = 3 * sum(map(len, self.features.values()))  # those before and after the last fit, and these
        features: dict[Split, Rows] = {}
        for split, rows in self.features.items():
            stored, begin = self.memory.rows(len(rows), rows.shape[1], images), 0
            for block in read_blocks([rows]):
                stored[begin : begin + len(block)] = encode(block)
                begin += len(block)
            features[split] = stored
        return replace(self, before=None, features=features)


@dataclass(frozen=True)
class Judgement:
    """What a protocol says about features.

    Attributes:
        val: a score from 0 to 1 for each validation image or episode, (n,); what is chosen is chosen by their mean.
        test: the same for test.
        stored: returns the mean of ``test`` with features that were stored, given how they are encoded.
        metrics: further means over the test images, by name.
        predictions: classes of the test images, where there are any.
        losses: cross-entropy of each test image, where there are probabilities.
        strength: strength of the ridge of a probe.
        neighbours: the k of k-NN.
        classifier: number of parameters of the classifier; 0 without one.
    """

    val: Tensor
    test: Tensor
    stored: Callable[[Encode], float]
    metrics: dict[str, float] = field(default_factory=dict)
    predictions: Tensor | None = None
    losses: list[float] | None = None
    strength: float | None = None
    neighbours: int | None = None
    classifier: int = 0


@dataclass(frozen=True)
class Protocol:
    """How features are judged.

    Attributes:
        name: the head of a comparison.
        words: what is done, in words.
        score: what the score is called.
        unit: what gets a score.
    """

    name: ClassVar[str]
    score: ClassVar[str] = "accuracy"
    unit: ClassVar[str] = "images"

    @property
    def words(self) -> str:
        """What is done, in words."""
        raise NotImplementedError


class FrozenProtocol(Protocol, ABC):
    """A protocol for features that stay as they are."""

    @abstractmethod
    def judge(self, pooled: Pooled) -> Judgement:
        """Judges features."""

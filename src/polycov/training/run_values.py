"""What the files of a run hold, checked when they are read."""

from dataclasses import dataclass, fields
from typing import Any

from polycov.system.structure import Structured


@dataclass(frozen=True)
class Best(Structured):
    """The best epoch so far."""

    epoch: int
    val_accuracy: float
    val_loss: float


@dataclass(frozen=True)
class Position(Structured):
    """How far a training has come, as a checkpoint holds it.

    Attributes:
        epoch: complete epochs.
        step: steps of the next one.
        sums: loss, correct images and images of these steps.
        best: the best epoch on validation.
        seconds: that these steps took.
        scaler: of mixed precision.
    """

    epoch: int
    step: int
    sums: tuple[float, float, float]
    best: Best | None
    seconds: float
    scaler: dict[str, Any] | None = None


@dataclass(frozen=True)
class Tested(Structured):
    """The result on the test images, as the last line of the metrics holds it."""

    test_accuracy: float
    low: float
    high: float
    images: int
    val_accuracy: float | None = None


TESTED = tuple(field.name for field in fields(Tested))


@dataclass(frozen=True)
class Predicted(Structured):
    """Predicted classes, and the cross-entropy of each test image."""

    test: list[int] | None = None
    val: list[int] | None = None
    test_loss: list[float] | None = None

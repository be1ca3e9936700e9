"""What a comparison records about each setting."""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from polycov.comparing.grid import SettingKey
from polycov.system.structure import Structured

Array = np.ndarray[Any, Any]


def pack(flags: Tensor) -> str:
    """Returns booleans as text, eight per byte."""
    return base64.b64encode(np.packbits(flags.numpy().astype(bool)).tobytes()).decode()


def unpack(text: str, count: int) -> Array:
    """Returns the booleans that `pack` turned into text."""
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=count).astype(bool)


@dataclass(frozen=True)
class Measurement(Structured):
    """What is measured of one setting.

    Attributes:
        spec: spec of the pool.
        channels: number of channels before the pool.
        dimensions: number of dimensions of the feature.
        bytes: size of a feature in float32, in bytes.
        pool_ms: milliseconds of pooling per image.
        val_accuracy: accuracy on the validation images of the seed.
        test_accuracy: accuracy on the test images.
        test_images: their number.
        val_correct: which validation images are classified correctly, packed.
        test_correct: which test images are classified correctly, packed.
        kernel_error: kernel error of a sketch; None where there is nothing to compare with.
        strength: strength of the ridge of a probe.
        stored: test accuracy with the features of the test images stored in fewer bytes, by dtype.
        predictions: for the test images; kept for the first seed only.
        test_loss: cross-entropy of each test image; kept for the first seed only.
        run: folder of the training run.
    """

    spec: str
    channels: int
    dimensions: int
    bytes: int
    pool_ms: float
    val_accuracy: float
    test_accuracy: float
    test_images: int
    val_correct: str
    test_correct: str
    kernel_error: float | None = None
    strength: float | None = None
    stored: dict[str, float] | None = None
    predictions: list[int] | None = None
    test_loss: list[float] | None = None
    run: str | None = None


@dataclass(frozen=True)
class Record(Structured):
    """A measurement with the setting it belongs to and the circumstances.

    Attributes:
        method: a method, a spec, or ``fewer-channels``.
        dim: the dimension asked for; None where the method has its own.
        seed: seed of the sketch and of the validation images.
        head: how the feature was judged.
        measurement: the result.
        seconds: that the setting took.
        threads: number of threads of the process.
        hardware: it ran on.
        versions: versions of the software.
    """

    method: str
    dim: int | None
    seed: int
    head: str
    measurement: Measurement
    seconds: float
    threads: int
    hardware: str
    versions: dict[str, str]

    @property
    def key(self) -> SettingKey:
        """Method, dimension and seed."""
        return self.method, self.dim, self.seed

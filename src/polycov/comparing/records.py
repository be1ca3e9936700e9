"""What a comparison records about each setting."""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polycov.comparing.grid import SettingKey
from polycov.errors import PolycovError
from polycov.system.structure import Structured

Array = np.ndarray[Any, Any]
FRACTIONS = "float32:"  # before scores that are not booleans


def pack(scores: Tensor) -> str:
    """Returns scores as text: booleans eight per byte, other scores as float32."""
    if scores.dtype == torch.bool:
        return base64.b64encode(np.packbits(scores.numpy()).tobytes()).decode()
    return FRACTIONS + base64.b64encode(scores.numpy().astype("<f4").tobytes()).decode()


def unpack(text: str, count: int) -> Array:
    """Returns the scores that `pack` turned into text, as float64.

    Raises:
        PolycovError: if there are not ``count`` of them.
    """
    try:
        content = base64.b64decode(text.removeprefix(FRACTIONS), validate=True)
        if text.startswith(FRACTIONS):
            scores = np.frombuffer(content, "<f4").astype(float)
        else:
            bits = np.unpackbits(np.frombuffer(content, np.uint8))
            scores = bits[:count] if -(-count // 8) == len(content) else bits
            scores = scores.astype(float)
    except ValueError as error:
        raise PolycovError(f"Expected scores in base 64: {error}.") from error
    if len(scores) != count:
        raise PolycovError(f"Expected the scores of {count} images or episodes, got {len(scores)}.")
    return scores


@dataclass(frozen=True)
class Measurement(Structured):
    """What is measured of one setting. Accuracy is the score of the protocol, such as recall@1 of a retrieval.

    Attributes:
        spec: spec of the pool.
        channels: number of channels before the pool.
        dimensions: number of dimensions of the feature.
        bytes: size of a feature in float32, in bytes.
        pool_ms: milliseconds of pooling per image.
        val_accuracy: accuracy on the validation images of the seed.
        test_accuracy: accuracy on the test images.
        test_images: number of test images, or of episodes.
        val_correct: the score of each validation image or episode, packed; usually whether it is classified correctly.
        test_correct: the same of each test image or episode.
        kernel_error: kernel error of a sketch; None where there is nothing to compare with.
        strength: strength of the ridge of a probe.
        stored: test accuracy with the features of the test images stored in fewer bytes, by dtype.
        predictions: for the test images; kept for the first seed only.
        test_loss: cross-entropy of each test image; kept for the first seed only.
        run: folder of the training run.
        metrics: further results on the test images, by name.
        neighbours: the k of k-NN.
        parameters: number of parameters that training changes: those of reduction, pool and classifier; with finetune,
            of the whole model. With frozen features, those that are fitted in closed form or would be trained.
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
    metrics: dict[str, float] | None = None
    neighbours: int | None = None
    parameters: int | None = None


@dataclass(frozen=True)
class Record(Structured):
    """A measurement with the setting it belongs to and the circumstances.

    Attributes:
        method: a method, a spec, or ``fewer-channels``.
        dim: the dimension asked for; None where the method has its own.
        seed: seed of the sketch and of the validation images.
        head: how the feature was judged.
        measurement: the result.
        seconds: seconds that the setting took.
        threads: number of threads of the process.
        hardware: hardware it ran on.
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

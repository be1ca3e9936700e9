"""What a feature is worth in fewer bytes: a curve for the recommended feature."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polycov.comparing.protocols.protocol import Encode, FrozenProtocol, Pooled
from polycov.data.product_quantizer import BITS, ProductQuantizer
from polycov.data.quantize import FeatureDtype, dequantize, quantize
from polycov.errors import MissingDependencyError
from polycov.system.memory_budget import MATRICES
from polycov.system.rows import Rows
from polycov.system.structure import Structured

Codes = dict[tuple[str, int], Encode]  # by name and bytes
SIZES = (512, 256, 128, 64)  # bytes of product codes
COPY_BYTES = 32  # that a fit needs for each number: several copies in float64
LARGEST = 4096  # of the smaller of images and dimensions: principal components then take seconds


@dataclass(frozen=True)
class Stored(Structured):
    """A feature stored in one way.

    Attributes:
        code: "float32", "float16", "int8", or "product".
        bytes: per image.
        scores: the test score of each seed.
    """

    code: str
    bytes: int
    scores: list[float]


@dataclass(frozen=True)
class StorageCurve(Structured):
    """A feature stored in ever fewer bytes.

    Attributes:
        method: of the feature.
        dim: the dimension asked for; None where the method has its own.
        seeds: seeds that were measured.
        points: from many bytes to few.
    """

    method: str
    dim: int | None
    seeds: list[int]
    points: list[Stored]


def storing(dtype: FeatureDtype) -> Encode:
    """Returns what is left of features after storing them in a dtype."""
    return lambda features: dequantize(*quantize(features, dtype))


@dataclass(frozen=True)
class StoredScores:
    """The test scores of a seed.

    Attributes:
        seed: that was measured.
        scores: by name and bytes of the code.
        missing: what to install for product codes, where that is missing.
    """

    seed: int
    scores: dict[tuple[str, int], float]
    missing: str = ""


def measure_stored(features: Pooled, protocol: FrozenProtocol) -> StoredScores:
    """Judges a feature as it is and stored in fewer bytes; product codes are fitted to training features."""
    codes, missing = _plain_codes(features.features["train"].shape[1]), ""
    try:
        codes |= _product_codes(features, features.seed)
    except MissingDependencyError as error:
        missing = str(error)
    judged = protocol.judge(features)
    return StoredScores(features.seed, {key: judged.stored(encode) for key, encode in codes.items()}, missing)


def stored_in_all(found: Sequence[StoredScores]) -> list[Stored]:
    """Returns each code with the scores of all seeds, in their order."""
    scores: dict[tuple[str, int], list[float]] = {}
    for one in sorted(found, key=lambda one: one.seed):
        for key, score in one.scores.items():
            scores.setdefault(key, []).append(score)
    return [Stored(code, size, values) for (code, size), values in scores.items()]


def _plain_codes(width: int) -> Codes:
    """Each number is stored separately; int8 comes with a scale of four bytes."""
    return {
        ("float32", 4 * width): storing("float32"),
        ("float16", 2 * width): storing("float16"),
        ("int8", width + 4): storing("int8"),
    }


def _product_codes(pooled: Pooled, seed: int) -> Codes:
    """Product codes of the sizes that the features have dimensions and images for, each smaller than int8.

    They are fitted to some of the training features if not all of them fit into memory, with the copies a fit makes.
    """
    train, width = pooled.features["train"], pooled.features["train"].shape[1]
    count = min(len(train), int(MATRICES * pooled.memory.limit) // (COPY_BYTES * width))
    if count < 2**BITS or min(count, width) > LARGEST:
        return {}
    some = _spread(train, count)
    fits = [size for size in SIZES if size * 8 // BITS <= min(count, width)]
    return {("product", size): _through(ProductQuantizer(size, seed).fit(some)) for size in fits}


def _spread(features: Rows, count: int) -> Tensor:
    """``count`` features, evenly spaced, since classes may be stored one after another."""
    if count == len(features):
        return features[:count]
    return features[torch.arange(count) * len(features) // count]


def _through(quantizer: ProductQuantizer) -> Encode:
    return lambda features: quantizer.decode(quantizer.encode(features))

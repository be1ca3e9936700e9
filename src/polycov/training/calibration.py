"""The scale of logits: how sure a classifier may be, judged by images it was not fitted to."""

import math
from collections.abc import Iterator

from torch import Tensor

from polycov.system.rows import BLOCK, Rows, read_blocks

SCALES = (1e-2, 1e4)  # of the logits, at least and at most


def calibrate(outputs: Rows, labels: Tensor) -> float:
    """Returns the scale s, an inverse temperature, for which softmax(s · outputs) are the best probabilities.

    It minimises the cross-entropy to the labels, each softened by 1 / (m + 1) of a uniform distribution, as if one
    more image had been seen whose class nobody knows: m images that are all classified correctly would otherwise call
    for an infinite scale. The loss is convex in s, so its derivative, the mean over images of Σ (p − t) · outputs, has
    one root, found by bisection.

    Args:
        outputs: of a classifier for images it was not fitted to, (m, classes).
        labels: (m,).

    Example:
        >>> import torch
        >>> outputs = torch.eye(2, dtype=torch.float64).repeat(49, 1)  # 98 images, all of them correct
        >>> scale = calibrate(outputs, outputs.argmax(1))
        >>> round(float((scale * outputs).softmax(1).amax()), 4)  # so one mistake in 198 is to be expected
        0.9949
    """

    def blocks() -> Iterator[Tensor]:
        return (block.double() for block in read_blocks([outputs]))

    softness = 1 / (len(outputs) + 1)
    true = sum(float(rows.gather(1, y[:, None]).sum()) for rows, y in zip(blocks(), labels.split(BLOCK), strict=True))
    total = sum(float(rows.sum()) for rows in blocks())
    wanted = (1 - softness) * true + softness * total / outputs.shape[1]  # Σ t · outputs
    low, high = map(math.log, SCALES)
    for _ in range(20):  # to 1e-5 of the scale
        middle = (low + high) / 2
        expected = sum(float(((math.exp(middle) * rows).softmax(1) * rows).sum()) for rows in blocks())
        low, high = (middle, high) if expected < wanted else (low, middle)
    return math.exp((low + high) / 2)

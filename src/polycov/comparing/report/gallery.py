"""Images for the page: the hardest mistakes, the pairs of classes that are confused most, some predictions."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from polycov.data.images import ImageData
from polycov.system.pages import data_url

Entry = dict[str, Any]
SIDE = 288  # pixels


def make_gallery(
    data: ImageData,
    predictions: Sequence[int],
    losses: Sequence[float] | None = None,
    *,
    count: int = 12,
    hardest: int = 6,
    pairs: int = 6,
) -> dict[str, Any]:
    """Returns the hardest mistakes, the pairs of classes that are confused most, and some predictions.

    An entry has the ``index`` of its test image; `polycov.comparing.explanations` adds an ``explanation`` to mistakes.

    Args:
        data: dataset whose test images were predicted.
        predictions: a class index per test image.
        losses: cross-entropy per test image: the larger, the harder; None if unknown, which leaves the hardest out.
        count: how many predictions to show, drawn at random.
        hardest: how many mistakes to show.
        pairs: how many pairs of classes to show, each by its hardest mistake.
    """
    samples = data["test"]
    labels, predicted = np.array(samples.labels), np.array(predictions)
    difficulty = np.zeros(len(labels)) if losses is None else np.array(losses)
    wrong = sorted((int(i) for i in np.flatnonzero(labels != predicted)), key=lambda i: -difficulty[i])
    drawn = np.random.default_rng(0).permutation(len(labels))[:count]

    def entry(i: int) -> Entry:
        return {
            "index": i,
            "image": data_url(samples.image(i), side=SIDE, quality=72),
            "name": samples.name(i),
            "class": data.classes[labels[i]],
            "prediction": data.classes[predicted[i]],
        }

    confused = Counter(tuple(sorted((int(labels[i]), int(predicted[i])))) for i in wrong)
    examples = []
    for (a, b), times in confused.most_common(pairs):
        mistake = next(i for i in wrong if {int(labels[i]), int(predicted[i])} == {a, b})
        taken_for = int(predicted[mistake])
        candidates = [int(i) for i in np.flatnonzero(labels == taken_for)]
        good = next((i for i in candidates if predicted[i] == taken_for), candidates[0] if candidates else mistake)
        examples.append({"times": times, "one": entry(mistake), "other": entry(good)})
    return {
        "hardest": [] if losses is None else [entry(i) for i in wrong[:hardest]],
        "predictions": [entry(i) for i in sorted(drawn.tolist())],
        "pairs": examples,
    }

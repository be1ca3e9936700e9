"""Images for the page: predictions, and the pairs of classes that are confused most."""

import base64
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from polycov.data.images import ImageData

Entry = dict[str, Any]
SIDE = 144


def thumbnail(image: Image.Image) -> str:
    """Returns a small image as a data URL."""
    image = image.copy()
    image.thumbnail((SIDE * 2, SIDE * 2))
    file = io.BytesIO()
    image.save(file, "jpeg", quality=72)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def make_gallery(data: ImageData, predictions: Sequence[int], count: int = 12, pairs: int = 6) -> dict[str, Any]:
    """Returns test images with their predictions, and examples of the classes that are confused most.

    An entry has the ``index`` of its test image; `polycov.comparing.explanations` adds an ``explanation`` to mistakes.

    Args:
        data: dataset whose test images were predicted.
        predictions: a class index per test image.
        count: how many predictions to show; a third of them wrong, if there are that many.
        pairs: how many pairs of classes to show.
    """
    samples = data["test"]
    labels, predicted = np.array(samples.labels), np.array(predictions)
    rng = np.random.default_rng(0)
    wrong, correct = np.flatnonzero(labels != predicted), np.flatnonzero(labels == predicted)
    chosen = [*rng.permutation(wrong)[: count // 3], *rng.permutation(correct)]
    chosen = sorted(int(i) for i in chosen[:count])

    def entry(i: int) -> Entry:
        return {
            "index": i,
            "image": thumbnail(samples.image(i)),
            "name": samples.name(i),
            "class": data.classes[labels[i]],
            "prediction": data.classes[predicted[i]],
        }

    confused = Counter(tuple(sorted((int(a), int(b)))) for a, b in zip(labels, predicted, strict=True) if a != b)
    examples = []
    for (a, b), times in confused.most_common(pairs):
        mistakes = [i for i in wrong if {int(labels[i]), int(predicted[i])} == {a, b}]
        mistake = int(mistakes[0])
        taken_for = int(predicted[mistake])
        candidates = [int(i) for i in np.flatnonzero(labels == taken_for)]
        good = next((i for i in candidates if predicted[i] == taken_for), candidates[0] if candidates else mistake)
        examples.append({"times": times, "one": entry(mistake), "other": entry(good)})
    return {"predictions": [entry(i) for i in chosen], "pairs": examples}

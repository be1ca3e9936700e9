"""Pictures for the page: predictions, and the pairs of classes that are confused most."""

import base64
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from polycov.data.images import ImageData

Picture = dict[str, Any]
SIDE = 144


def thumbnail(image: Image.Image) -> str:
    """Returns a small picture as an address that holds it."""
    image = image.copy()
    image.thumbnail((SIDE * 2, SIDE * 2))
    file = io.BytesIO()
    image.save(file, "jpeg", quality=72)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def make_gallery(data: ImageData, predictions: Sequence[int], some: int = 12, pairs: int = 6) -> dict[str, Any]:
    """Returns test pictures with their predictions, and examples of the classes that are confused most.

    Args:
        data: whose test part was predicted.
        predictions: a class number for each test picture.
        some: how many predictions to show; a third of them wrong, if there are as many.
        pairs: how many pairs of classes to show.
    """
    samples = data["test"]
    labels, said = np.array(samples.labels), np.array(predictions)
    chance = np.random.default_rng(0)
    wrong, right = np.flatnonzero(labels != said), np.flatnonzero(labels == said)
    chosen = [*chance.permutation(wrong)[: some // 3], *chance.permutation(right)]
    chosen = sorted(int(i) for i in chosen[:some])

    def shown(i: int) -> Picture:
        return {
            "image": thumbnail(samples.image(i)),
            "name": samples.name(i),
            "class": data.classes[labels[i]],
            "prediction": data.classes[said[i]],
        }

    confused = Counter(tuple(sorted((int(a), int(b)))) for a, b in zip(labels, said, strict=True) if a != b)
    found = []
    for (a, b), times in confused.most_common(pairs):
        mistakes = [i for i in wrong if {int(labels[i]), int(said[i])} == {a, b}]
        mistake = int(mistakes[0])
        taken_for = int(said[mistake])
        examples = [int(i) for i in np.flatnonzero(labels == taken_for)]
        good = next((i for i in examples if said[i] == taken_for), examples[0] if examples else mistake)
        found.append({"times": times, "one": shown(mistake), "other": shown(good)})
    return {"predictions": [shown(i) for i in chosen], "pairs": found}

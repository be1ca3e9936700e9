"""Classes held out: is a fitted feature any good on classes that its fit has not seen?"""

from collections import Counter
from dataclasses import replace

import torch

from polycov.data.images import ImageData, Samples, Split
from polycov.errors import PolycovError

VAL_SHARE = 0.2  # of the classes that are not held out for the test


def class_counts(classes: int, fraction: float) -> tuple[int, int, int]:
    """Returns the numbers of classes to fit, for validation and for the test, given the ``fraction`` for the test.

    Validation gets a fifth of the rest; both get at least two.

    Raises:
        PolycovError: if the fraction is not between 0 and 1, or no two classes remain to fit.

    Example:
        >>> class_counts(46, 0.5), class_counts(20, 0.5)
        ((18, 5, 23), (8, 2, 10))
    """
    if not 0 < fraction < 1:
        raise PolycovError(f"Expected the share of unseen classes to be between 0 and 1, got {fraction}.")
    test = max(round(fraction * classes), 2)
    val = max(round(VAL_SHARE * (classes - test)), 2)
    if classes - test - val < 2:
        raise PolycovError(
            f"Expected at least two classes each to fit, for validation and for the test, got {classes}. Choose fewer "
            "unseen classes, or data with more classes."
        )
    return classes - test - val, val, test


def hold_out_classes(data: ImageData, fraction: float, seed: int) -> ImageData:
    """Splits data by class instead of by image: all images of a class are in the same split.

    Only classes with at least two images are held out, since the others have nothing to find. The split depends on the
    classes and the seed alone.

    Args:
        data: images in any splits.
        fraction: share of the classes for the test.
        seed: seed of the draw.

    Raises:
        PolycovError: if there are too few classes.
    """
    samples = data.all_samples()
    images = Counter(samples.labels)
    several = [label for label in range(len(data.classes)) if images[label] > 1]
    _, val, test = class_counts(len(several), fraction)
    order = [several[int(i)] for i in torch.randperm(len(several), generator=torch.Generator().manual_seed(seed))]
    tested, validated = set(order[:test]), set(order[test : test + val])
    fitted = set(range(len(data.classes))) - tested - validated
    parts: dict[Split, set[int]] = {"train": fitted, "val": validated, "test": tested}
    return replace(data, splits={split: _of_classes(samples, labels) for split, labels in parts.items()})


def fewest_seen_images(data: ImageData, fraction: float) -> int:
    """Returns a number of images of fitted classes that `hold_out_classes` reaches with every seed."""
    sizes = sorted(Counter(data.all_samples().labels).values())
    several = [size for size in sizes if size > 1]
    fitted, _, _ = class_counts(len(several), fraction)
    return sum(several[:fitted]) + sizes.count(1)


def _of_classes(samples: Samples, labels: set[int]) -> Samples:
    return samples.select(i for i, label in enumerate(samples.labels) if label in labels)

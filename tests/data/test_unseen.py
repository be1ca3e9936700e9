from pathlib import Path

import pytest

from polycov.data.images import SPLITS, Files, ImageData, Samples
from polycov.data.unseen import class_counts, fewest_seen_images, hold_out_classes
from polycov.errors import PolycovError


def data(sizes: list[int]) -> ImageData:
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    names = [f"{label:02d}-{i:03d}.jpg" for i, label in enumerate(labels)]
    samples = Samples(Files(Path()), names, labels)
    train, test = (samples.select(range(start, len(samples), 2)) for start in (0, 1))
    return ImageData("d", [str(i) for i in range(len(sizes))], {"train": train, "val": test.select([]), "test": test})


def test_every_image_is_in_one_split_and_every_class_too() -> None:
    whole = data([4 + i for i in range(20)])
    split = hold_out_classes(whole, 0.5, seed=3)
    classes = {name: set(split[name].labels) for name in SPLITS}
    assert [len(classes[name]) for name in SPLITS] == [8, 2, 10]
    assert set.union(*classes.values()) == set(range(20))
    names = [split[name].name(i) for name in SPLITS for i in range(len(split[name]))]
    assert sorted(names) == [whole.all_samples().name(i) for i in range(len(names))]
    assert hold_out_classes(whole, 0.5, seed=3).fingerprint() == split.fingerprint()
    assert hold_out_classes(whole, 0.5, seed=4).fingerprint() != split.fingerprint()


def test_a_class_with_one_image_is_fitted_since_it_has_nothing_to_find() -> None:
    whole = data([1, 1, 1, 5, 6, 7, 8, 9, 10])
    fewest = fewest_seen_images(whole, 0.4)
    sizes = []
    for seed in range(20):
        split = hold_out_classes(whole, 0.4, seed)
        assert {0, 1, 2} <= set(split["train"].labels)
        sizes.append(len(split["train"]))
    assert fewest == 3 + 5 + 6 == min(sizes)


def test_too_few_classes_are_an_error() -> None:
    assert class_counts(200, 0.5) == (80, 20, 100)
    assert class_counts(6, 0.3) == (2, 2, 2)
    with pytest.raises(PolycovError, match="at least two classes each to fit"):
        class_counts(5, 0.3)
    for share in (0.0, 1.0, -1.0):
        with pytest.raises(PolycovError, match="between 0 and 1"):
            class_counts(20, share)

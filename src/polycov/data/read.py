"""From the one argument that names the data to images in splits."""

import difflib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from polycov.data.class_folders import explain_missing, read_folders
from polycov.data.hugging_face import read_hugging_face
from polycov.data.images import (
    SPLITS,
    ImageData,
    Samples,
    hold_out,
    join,
    missing_classes,
    require_classes,
    require_trainable,
)
from polycov.data.layouts import read_aircraft, read_cars, read_cub
from polycov.data.tars import read_tars
from polycov.data.typefaces import read_typefaces
from polycov.errors import PolycovError, quoted
from polycov.progress import Progress

BUILT_IN: dict[str, Callable[[], ImageData]] = {"typefaces": read_typefaces}
# Each returns None if a folder has another layout.
LAYOUTS: list[Callable[[Path], ImageData | None]] = [read_cub, read_aircraft, read_cars, read_folders, read_tars]
MOSTLY = 0.5  # a note is made if one class has at least this share of the test images
PREFIXES = ("hfds/", "hfids/", "wds/", "tfds/", "torch/")


def read_data(
    data: str | Path,
    *,
    val_fraction: float = 0.2,
    test_fraction: float = 0.3,
    split_seed: int = 0,
    val_seed: int | None = None,
) -> ImageData:
    """Reads images with classes, split into train, val and test: `split_data` of `read_splits`.

    Args:
        data: a built-in name (``typefaces``); a folder: CUB-200-2011, FGVC-Aircraft or Stanford Cars as published,
            class folders below ``train`` and ``test`` (or ``val``), class folders alone, or tar shards;
            ``hfds/NAME`` for a dataset on the Hugging Face hub or on disk; ``wds/FOLDER`` for webdataset shards.
        val_fraction: as in `split_data`.
        test_fraction: as in `split_data`.
        split_seed: as in `split_data`.
        val_seed: as in `split_data`.

    Raises:
        PolycovError: if the data does not exist, cannot be read, or cannot be trained on.
    """
    _check_options(val_fraction, test_fraction, split_seed, val_seed)  # before reading, which may take long
    return split_data(
        read_splits(data),
        source_name=str(data),
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        split_seed=split_seed,
        val_seed=val_seed,
    )


def split_data(
    image_data: ImageData,
    *,
    source_name: str | None = None,
    val_fraction: float = 0.2,
    test_fraction: float = 0.3,
    split_seed: int = 0,
    val_seed: int | None = None,
) -> ImageData:
    """Splits images into train, val and test, keeping published splits.

    Args:
        image_data: from `read_splits`.
        source_name: for error messages; by default the name of the data.
        val_fraction: the fraction of the training images held out for validation, unless there is a val split beside
            a test split. 0 for none: then a val split is trained on too.
        test_fraction: the fraction held out for testing if there is neither a test nor a val split.
        split_seed: for the images held out.
        val_seed: for the images held out for validation; by default ``split_seed``.

    Raises:
        PolycovError: if there are no training images, or the result cannot be trained on.
    """
    _check_options(val_fraction, test_fraction, split_seed, val_seed)
    source_name = source_name or image_data.name
    require_classes(image_data)  # before notes on the splits
    splits = {split: samples for split, samples in image_data.splits.items() if len(samples)}
    notes = list(image_data.notes)
    if "train" not in splits:
        raise _without_training(source_name, list(splits))
    if "test" not in splits and "val" in splits:  # as ImageNet is published
        splits["test"] = splits.pop("val")
        notes.append("the val split is used for testing")
    if "test" not in splits:
        splits["train"], splits["test"] = _hold_out_test(source_name, splits["train"], test_fraction, split_seed)
        notes.append(_held_out("testing", splits["train"], splits["test"], test_fraction, split_seed))
    if "val" in splits and not val_fraction:
        splits["train"] = join([splits["train"], splits.pop("val")])
        notes.append("the val split is used for training too")
    if "val" not in splits:
        seed = split_seed if val_seed is None else val_seed
        splits["train"], splits["val"] = hold_out(splits["train"], val_fraction, seed)
        if len(splits["val"]):
            notes.append(_held_out("validation", splits["train"], splits["val"], val_fraction, seed))
        elif val_fraction:
            notes.append("no class has a second training image to hold out for validation")
    data = require_trainable(replace(image_data, splits={split: splits[split] for split in SPLITS}, notes=notes))
    return replace(data, notes=notes + _remarks(data))


def _without_training(source_name: str, splits: list[str]) -> PolycovError:
    only = f", only a {' and a '.join(splits)} split" if splits else ""
    return PolycovError(f"There are no training images in {source_name!r}{only}. Expected train/CLASS/*.jpg.")


def _hold_out_test(source_name: str, samples: Samples, fraction: float, seed: int) -> tuple[Samples, Samples]:
    if not fraction:
        raise PolycovError(f"{source_name!r} has no test split: expected test_fraction above 0.")
    train, test = hold_out(samples, fraction, seed)
    if not len(test):
        raise PolycovError(
            f"There are no test images in {source_name!r}, and none can be held out: every class has one image. Add "
            "images, at least 3 per class: one each to train, validate and test."
        )
    return train, test


def _held_out(purpose: str, kept: Samples, held_out: Samples, fraction: float, seed: int) -> str:
    """A note on what was held out: of a small class it may be far more than the fraction."""
    sizes = Counter([*kept.labels, *held_out.labels]).values()
    least = ", at least one image" if any(round(fraction * size) == 0 for size in sizes) else ""
    images = f"{len(held_out)} of {len(kept) + len(held_out)} images"
    return f"{images} held out for {purpose}: about {fraction:.0%} of each class{least}, seed {seed}"


def _remarks(data: ImageData) -> list[str]:
    """What a user should know before reading an accuracy."""
    remarks = []
    untested = missing_classes(data, "test")
    if untested:
        remarks.append(
            f"there are no test images of {quoted(untested)} ({len(untested)} of {len(data.classes)} classes)"
        )
    labels = data["test"].labels
    (largest, count), tested = Counter(labels).most_common(1)[0], len(data.classes) - len(untested)
    share = count / len(labels)
    if tested > 1 and share >= max(MOSTLY, 1.5 / tested):
        name = data.classes[largest]
        remarks.append(f"{share:.0%} of the test images are {name!r}: always answering {name!r} is that accurate")
    return remarks


def report_data(data: ImageData, progress: Progress) -> None:
    """Tells the user what was read: classes, images, and every note."""
    progress.message(f"data: {data.summary()}")
    for note in data.notes:
        progress.message(f"note: {note}")


def _advice(missing: Path) -> str:
    """What to do about a folder that does not exist: a similar name, or what is expected."""
    folder = missing.parent
    siblings = [str(path) for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    close = difflib.get_close_matches(str(missing), [*siblings, *BUILT_IN], n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    built_in = " or ".join(BUILT_IN)
    return f"Expected a folder with a folder of images per class, hfds/NAME, wds/FOLDER, or {built_in} (built in)."


def _check_options(val_fraction: float, test_fraction: float, split_seed: int, val_seed: int | None) -> None:
    for name, seed in (("split_seed", split_seed), ("val_seed", val_seed or 0)):
        if not 0 <= seed < 2**63:
            raise PolycovError(f"Expected {name} from 0 to 2⁶³ − 1, got {seed}.")
    for name, value in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
        if not 0 <= value < 1:
            raise PolycovError(f"Expected {name} from 0 to below 1, got {value}.")


def read_splits(data: str | Path) -> ImageData:
    """Reads images in their published splits, if any; arguments and errors as in `read_data`."""
    data = str(data)
    if data in BUILT_IN:
        return BUILT_IN[data]()
    prefix = next((p for p in PREFIXES if data.startswith(p)), None)
    if prefix in ("hfds/", "hfids/"):
        return read_hugging_face(data[len(prefix) :])
    if prefix in ("tfds/", "torch/"):
        raise PolycovError(f"{prefix[:-1]} data has no random access. Write {data!r} to class folders first.")
    root = Path(data[len(prefix) :] if prefix else data).expanduser()
    if not root.exists():
        raise PolycovError(f"There is no folder {str(root)!r}. {_advice(root)}")
    for read in [read_tars] if prefix else LAYOUTS:
        image_data = read(root)
        if image_data is not None:
            return image_data
    if prefix:
        raise PolycovError(f"There are no tar files in {str(root)!r}. Class folders need no {prefix!r} before them.")
    if root.is_file():
        raise PolycovError(f"Expected a folder of class folders, got the file {str(root)!r}.")
    raise PolycovError(explain_missing(root))

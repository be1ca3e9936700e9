"""Preparing a comparison: the images of every seed, and the folder with the identity of what is compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polycov.comparing.comparison_folder import ComparisonFolder, default_path
from polycov.comparing.grid import OWN_METHODS, check_dims, check_methods
from polycov.comparing.options import CompareOptions
from polycov.comparing.protocols.choose import TRAINED
from polycov.data.broken import exclude_broken, find_broken
from polycov.data.images import ImageData, Split, require_trainable, require_validation
from polycov.data.read import read_splits, report_data, split_data
from polycov.data.transforms import Preprocessing
from polycov.data.unseen import fewest_seen_images, hold_out_classes
from polycov.errors import PolycovError
from polycov.models.backbones import input_size, load_plugin
from polycov.progress import Progress
from polycov.system.files import cache_folder
from polycov.system.locks import wait_for_lock
from polycov.training.config import Config, SplitOptions
from polycov.training.probe import require_closed_form

USES: dict[Split, str] = {"train": "to fit", "val": "for validation", "test": "for the test"}


@dataclass
class SeededData:
    """Images read once and split again for each seed: the test images stay, the validation images change.

    Attributes:
        source: what the user called the data.
        images: the images in their published splits.
        options: how to split them.
        unreadable: names of images to drop, with the reasons.
        unseen: share of the classes to test on; 0 to split images rather than classes.
    """

    source: str
    images: ImageData
    options: SplitOptions
    unreadable: dict[str, str] = field(default_factory=dict)
    unseen: float = 0.0
    _splits: dict[int, ImageData] = field(default_factory=dict, repr=False)

    def drop(self, unreadable: dict[str, str]) -> None:
        """Drops unreadable images from every split."""
        self.unreadable, self._splits = unreadable, {}

    def fingerprint(self) -> str:
        """Returns a fingerprint of the image files, to notice a change."""
        return self.images.without(set(self.unreadable)).fingerprint(stamps=True)

    def split(self, seed: int) -> ImageData:
        """Returns the images with the validation split of a seed."""
        if seed not in self._splits:
            data = self._split(seed)
            data = data.without(set(self.unreadable)) if self.unreadable else data
            self._splits[seed] = hold_out_classes(data, self.unseen, seed) if self.unseen else data
        return self._splits[seed]

    def _split(self, seed: int) -> ImageData:
        return split_data(
            self.images,
            source_name=self.source,
            val_fraction=self.options.val_fraction,
            test_fraction=self.options.test_fraction,
            split_seed=self.options.split_seed,
            val_seed=seed,
        )

    def fewest_training_images(self) -> int:
        """Returns how many training images every seed has at least, even if all unreadable images are among them."""
        if self.unseen:
            return fewest_seen_images(self.images.without(set(self.unreadable)), self.unseen)
        if not self.unreadable:
            return len(self.split(0)["train"])
        data = self._split(0)
        test = {data["test"].name(i) for i in range(len(data["test"]))}
        return max(len(data["train"]) - len(set(self.unreadable) - test), 1)


@dataclass
class Prepared:
    """Everything a comparison needs before it can be planned.

    Attributes:
        options: options of the comparison.
        config: configuration of the training; a probe takes data and model from it.
        methods: checked, in canonical form.
        dims: checked, in order.
        data: the images of every seed.
        unseen: the images of every seed split by class, where both accuracy and retrieval are measured.
        fingerprint: fingerprint of the image files, to notice a change.
        size: size of the images.
        folder: folder of the comparison, not opened yet.
        identity: what all of its records have in common.
        cache: folder for local features.
    """

    options: CompareOptions
    config: Config
    methods: list[str]
    dims: list[int]
    data: SeededData
    unseen: SeededData | None
    fingerprint: str
    size: int
    folder: ComparisonFolder
    identity: dict[str, Any]
    cache: Path

    @contextmanager
    def opened(self, progress: Progress) -> Iterator[None]:
        """Opens the folder; no other process can write to it within the block.

        Raises:
            PolycovError: if another process does, or it holds another comparison.
        """
        with self.folder.writing():
            self.folder.open(self.identity, _facts(self.options, self.data.split(0)))
            self.folder.drop_damaged(progress)
            progress.message(f"comparison: {self.folder.path}")
            yield

    def require_unchanged(self) -> None:
        """Checks that the images have not changed since the comparison began.

        Raises:
            PolycovError: if they have.
        """
        if self.data.fingerprint() != self.fingerprint:
            raise PolycovError(f"The images of {self.options.data!r} have changed since the comparison began.")


def prepare(options: CompareOptions, progress: Progress) -> Prepared:
    """Reads the images and looks for unreadable ones.

    Raises:
        PolycovError: if an option makes no sense, or there are no such images.
    """
    config = options.config()
    methods, dims = check_methods(options.methods), check_dims(options.dims)
    if options.head not in TRAINED:
        for method in methods:
            if method not in OWN_METHODS:
                require_closed_form(method)
    load_plugin(options.runtime.plugin)
    cache = cache_folder(options.cache)
    data = SeededData(options.data, read_splits(options.data), options.split)
    first = _drop_unreadable(data, options, cache, progress)
    report_data(first, progress)
    require_validation(first)
    by_class = replace(data, unseen=options.unseen_classes, _splits={}) if options.unseen_classes else None
    if by_class is not None:
        report_unseen(by_class.split(0), progress)
    size = input_size(config.network.backbone, config.images.size, first.size)
    Preprocessing(size, size)  # raises if the size is invalid
    fingerprint = data.fingerprint()
    identity = _identity(options, config, size, [first.fingerprint(), fingerprint])
    both = options.head == "probe"
    judged = data if by_class is None or both else by_class
    folder = ComparisonFolder(options.out or default_path(first.name, identity))
    unseen = by_class if both else None
    return Prepared(options, config, methods, dims, judged, unseen, fingerprint, size, folder, identity, cache)


def _drop_unreadable(data: SeededData, options: CompareOptions, cache: Path, progress: Progress) -> ImageData:
    """Drops unreadable images from every split; returns the images of the first seed."""
    everything, workers = data.split(0), max(options.runtime.workers, 1)
    with wait_for_lock(cache / "checking.lock"):  # one process looks, the others read the cached result
        unreadable = find_broken(everything, cache, workers=workers, progress=progress)
    readable = require_trainable(exclude_broken(everything, unreadable, options.split.broken, progress))
    data.drop(unreadable)
    return readable


def report_unseen(data: ImageData, progress: Progress) -> None:
    """Says how many classes are held out."""
    parts = [f"{len(set(data[split].labels))} classes {verb}" for split, verb in USES.items()]
    progress.message(f"unseen classes: {', '.join(parts)}, drawn for each seed")


def _identity(options: CompareOptions, config: Config, size: int, images: list[str]) -> dict[str, Any]:
    """What all records of a comparison have in common. The fingerprints say which images, and how they are split."""
    plain = config.to_dict()
    del plain["data"], plain["split"]
    plain["images"]["size"] = size
    del plain["pooling"]["pool"], plain["pooling"]["dim"], plain["training"]["seed"]
    if options.head not in TRAINED:
        del plain["training"]
    identity: dict[str, Any] = {"head": options.head, "config": plain, "images": images}
    if options.protocol_options():
        identity["protocol"] = options.protocol_options()
    if options.unseen_classes:
        identity["unseen_classes"] = options.unseen_classes
    return identity


def _facts(options: CompareOptions, data: ImageData) -> dict[str, Any]:
    return {
        "data": data.name,
        "source": options.data,
        "classes": data.classes,
        "notes": data.notes,
        "counts": {split: len(samples) for split, samples in data.splits.items()},
        "command": options.command(),
        "train": options.train_command(),
    }

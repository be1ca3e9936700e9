"""Batches of images, in an order that depends only on seed and epoch."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from polycov.data.images import Samples, Source, read_item
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError

Batch = tuple[Tensor, Tensor, Tensor]  # images, labels, indices
Row = tuple[Tensor, int, int, str]  # image, label, index, why it is unreadable


class ImageDataset(Dataset[Row]):
    """Preprocessed images, or their pixels, by index; in training by index and seed of the augmentation.

    An unreadable image is returned black and with the reason: a worker process would lose the text of an exception.
    """

    def __init__(self, samples: Samples, preprocessing: Preprocessing, pixels: bool = False) -> None:
        self.samples, self.preprocessing = samples, preprocessing
        self.prepare = preprocessing.pixels if pixels else preprocessing

    def __getitem__(self, key: int | tuple[int, int]) -> Row:
        index, seed = key if isinstance(key, tuple) else (key, None)
        label, size = self.samples.labels[index], self.preprocessing.size
        try:
            image = self.samples.image(index, least=self.preprocessing.decoded_side)
        except PolycovError as error:
            return self.prepare(Image.new("RGB", (size, size))), label, index, str(error)
        x = self.prepare(image) if seed is None else self.preprocessing.augmented(image, seed)
        return x, label, index, ""


class ItemDataset(Dataset[Row]):
    """The pixels of images by their items in a source, of which there may be more than anyone can list."""

    def __init__(self, source: Source, preprocessing: Preprocessing) -> None:
        self.source, self.preprocessing = source, preprocessing

    def __getitem__(self, key: tuple[int, Any]) -> Row:
        index, item = key
        size, least = self.preprocessing.size, self.preprocessing.decoded_side
        try:
            return self.preprocessing.pixels(read_item(self.source, item, least=least)), 0, index, ""
        except PolycovError as error:
            return self.preprocessing.pixels(Image.new("RGB", (size, size))), 0, index, str(error)


def seed_from(*parts: object) -> int:
    """Returns a seed that depends on all parts, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def epoch_order(count: int, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Returns the indices of the images in each batch of an epoch.

    All batches have the same size. The remaining few images are dropped; they differ in each epoch.
    """
    generator = torch.Generator().manual_seed(seed_from(seed, "order", epoch))
    order = torch.randperm(count, generator=generator).tolist()
    batch_size = min(batch_size, count)
    return [order[i : i + batch_size] for i in range(0, count - batch_size + 1, batch_size)]


def load_batches(
    samples: Samples,
    preprocessing: Preprocessing,
    batches: Sequence[Sequence[int | tuple[int, int]]],
    workers: int = 0,
    on_unreadable: Callable[[int, str], object] | None = None,
    *,
    pixels: bool = False,
) -> Iterator[Batch]:
    """Yields batches of preprocessed images: images (B, 3, H, W), labels (B,), indices (B,).

    Args:
        samples: the images.
        preprocessing: applied to each image.
        batches: the indices of the images in each batch, or pairs of index and seed of the augmentation.
        workers: additional processes that read images.
        on_unreadable: called with the index of an unreadable image and the reason; the image is skipped.
        pixels: yield images as pixels in uint8, (B, H, W, 3), for `Preprocessing.normalise` or a `FrozenBackbone`: a
            quarter of the memory on their way from other processes.

    Raises:
        PolycovError: on an unreadable image, without ``on_unreadable``.
        ConnectionError: if images are elsewhere and cannot be reached.
    """
    return _load(ImageDataset(samples, preprocessing, pixels), batches, min(workers, len(batches)), on_unreadable)


def load_items(
    source: Source,
    preprocessing: Preprocessing,
    batches: Iterable[Sequence[Any]],
    workers: int,
    on_unreadable: Callable[[int, str], object],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the pixels of batches of images, in uint8, (B, H, W, 3), with their positions in the batch, (B,).

    The processes that read images go on from one batch to the next for as long as there are any; batches are taken
    somewhat ahead of those that are yielded.

    Args:
        source: where images come from.
        preprocessing: applied to each image, but for normalising.
        batches: the items of the images in each batch, in any number.
        workers: additional processes that read images.
        on_unreadable: called with the position of an unreadable image and the reason, before its batch is yielded
            without it.

    Raises:
        ConnectionError: if images are elsewhere and cannot be reached.
    """
    keys = (list(enumerate(batch)) for batch in batches)
    for images, _, positions in _load(ItemDataset(source, preprocessing), keys, workers, on_unreadable):
        yield images, positions


def _load(
    dataset: Dataset[Row],
    batches: Iterable[Sequence[Any]],
    workers: int,
    on_unreadable: Callable[[int, str], object] | None,
) -> Iterator[Batch]:
    """The batches of a dataset by their keys, without unreadable images."""
    loader: DataLoader[Row] = DataLoader(
        dataset,
        batch_sampler=batches,  # type: ignore[arg-type]
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
    )
    for images, labels, indices, reasons in _without_traceback(loader):
        unreadable = [i for i, reason in enumerate(reasons) if reason]
        for i in unreadable:
            if on_unreadable is None:
                raise PolycovError(reasons[i])
            on_unreadable(int(indices[i]), reasons[i])
        kept = [i for i, reason in enumerate(reasons) if not reason] if unreadable else slice(None)
        yield images[kept], labels[kept], indices[kept]


def _without_traceback(loader: "DataLoader[Row]") -> Iterator[Any]:
    """The batches; a network error comes without the traceback that a worker adds to its text."""
    try:
        yield from loader
    except ConnectionError as error:
        text = str(error)
        raise ConnectionError(text[max(text.rfind("Cannot reach"), 0) :].strip()) from None

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
AHEAD = 2  # batches that each worker reads ahead
KEPT = 3  # batches of pixels, the last among them, that are not overwritten yet


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


class SharedPixels(Dataset[tuple[int, int, str]]):
    """Images whose pixels are written to memory that all processes share: sending them would cost more than a copy.

    There is room for some batches, and each takes the place of an older one. A key is the place of a batch, the
    position of the image in it, and the key of the image.

    Args:
        dataset: gives pixels, (H, W, 3) in uint8.
        size: side of the images.
        batch_size: images of a batch, at most.
        batches: how many batches there is room for.
    """

    def __init__(self, dataset: Dataset[Row], size: int, batch_size: int, batches: int) -> None:
        self.dataset = dataset
        self.pixels = torch.empty(batches, batch_size, size, size, 3, dtype=torch.uint8).share_memory_()

    @classmethod
    def if_room(cls, dataset: Dataset[Row], size: int, batch_size: int, batches: int) -> "SharedPixels | None":
        """Returns the dataset, or None if processes cannot share so much memory, as in containers by default."""
        try:
            return cls(dataset, size, batch_size, batches)
        except RuntimeError:  # of torch: not enough memory, or /dev/shm is too small
            return None

    def __getitem__(self, key: tuple[int, int, Any]) -> tuple[int, int, str]:
        place, position, image_key = key
        self.pixels[place, position], label, index, reason = self.dataset[image_key]
        return label, index, reason


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
        pixels: yield images as pixels in uint8, (B, H, W, 3), for `Preprocessing.normalise` or a `FrozenBackbone`. With
            workers they are in memory that later batches reuse: use them before the third batch after theirs.

    Raises:
        PolycovError: on an unreadable image, without ``on_unreadable``.
        ConnectionError: if images are elsewhere and cannot be reached.
    """
    dataset, workers = ImageDataset(samples, preprocessing, pixels), min(workers, len(batches))
    if pixels and workers:
        return _load_pixels(dataset, preprocessing.size, batches, max(map(len, batches)), workers, on_unreadable)
    return _load(dataset, batches, workers, on_unreadable)


def load_items(
    source: Source,
    preprocessing: Preprocessing,
    batches: Iterable[Sequence[Any]],
    batch_size: int,
    workers: int,
    on_unreadable: Callable[[int, str], object],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the pixels of batches of images, in uint8, (B, H, W, 3), with their positions in the batch, (B,).

    The processes that read images go on from one batch to the next for as long as there are any; batches are taken
    somewhat ahead of those that are yielded. With workers, pixels are in memory that later batches reuse: use them
    before the third batch after theirs.

    Args:
        source: where images come from.
        preprocessing: applied to each image, but for normalising.
        batches: the items of the images in each batch, in any number.
        batch_size: images of a batch, at most.
        workers: additional processes that read images.
        on_unreadable: called with the position of an unreadable image and the reason, before its batch is yielded
            without it.

    Raises:
        ConnectionError: if images are elsewhere and cannot be reached.
    """
    dataset, keys = ItemDataset(source, preprocessing), (list(enumerate(batch)) for batch in batches)
    if workers:
        loading = _load_pixels(dataset, preprocessing.size, keys, batch_size, workers, on_unreadable)
    else:
        loading = _load(dataset, keys, 0, on_unreadable)
    return ((images, positions) for images, _, positions in loading)


def _load(
    dataset: Dataset[Row],
    batches: Iterable[Sequence[Any]],
    workers: int,
    on_unreadable: Callable[[int, str], object] | None,
) -> Iterator[Batch]:
    """The batches of a dataset by their keys, without unreadable images."""
    for images, labels, indices, reasons in _collated(dataset, batches, workers):
        kept = _readable(indices, reasons, on_unreadable)
        yield images[kept], labels[kept], indices[kept]


def _load_pixels(
    dataset: Dataset[Row],
    size: int,
    batches: Iterable[Sequence[Any]],
    batch_size: int,
    workers: int,
    on_unreadable: Callable[[int, str], object] | None,
) -> Iterator[Batch]:
    """The same for pixels, in shared memory."""
    room = AHEAD * workers + KEPT
    shared = SharedPixels.if_room(dataset, size, batch_size, room)
    if shared is None:
        yield from _load(dataset, batches, workers, on_unreadable)
        return
    keys = ([(number % room, i, key) for i, key in enumerate(batch)] for number, batch in enumerate(batches))
    for number, rows in enumerate(_collated(shared, keys, workers, collate=list)):
        labels, indices, reasons = zip(*rows, strict=True)
        kept = _readable(indices, reasons, on_unreadable)
        pixels = shared.pixels[number % room, : len(rows)]
        yield pixels[kept], torch.tensor(labels)[kept], torch.tensor(indices)[kept]


def _readable(
    indices: Sequence[int] | Tensor, reasons: Sequence[str], on_unreadable: Callable[[int, str], object] | None
) -> slice | list[int]:
    """The rows of a batch that are readable; the others are reported."""
    unreadable = [i for i, reason in enumerate(reasons) if reason]
    for i in unreadable:
        if on_unreadable is None:
            raise PolycovError(reasons[i])
        on_unreadable(int(indices[i]), reasons[i])
    return [i for i, reason in enumerate(reasons) if not reason] if unreadable else slice(None)


def _collated(
    dataset: Dataset[Any],
    batches: Iterable[Sequence[Any]],
    workers: int,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Iterator[Any]:
    """The batches of a dataset, collated by torch, or otherwise: sending a tensor takes a file, a list does not."""
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=batches,  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=collate,
        prefetch_factor=AHEAD if workers else None,
        pin_memory=torch.cuda.is_available(),
    )
    return _without_traceback(loader)


def _without_traceback(loader: "DataLoader[Any]") -> Iterator[Any]:
    """The batches; a network error comes without the traceback that a worker adds to its text.

    Raises:
        PolycovError: if a worker was killed.
    """
    try:
        yield from loader
    except RuntimeError as error:
        if str(error).startswith("DataLoader worker"):
            raise PolycovError(
                "A process that reads images was killed, perhaps because memory ran out: use fewer --workers, or a "
                "smaller --batch-size."
            ) from error
        raise
    except ConnectionError as error:
        text = str(error)
        raise ConnectionError(text[max(text.rfind("Cannot reach"), 0) :].strip()) from None

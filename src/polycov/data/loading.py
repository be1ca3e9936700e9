"""Batches of pictures, in an order that depends on seed and epoch alone."""

import hashlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from polycov.data.images import Samples
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError

Batch = tuple[Tensor, Tensor, Tensor]  # images, labels, numbers


Row = tuple[Tensor, int, int, str]  # image, label, number, why it cannot be read


class Pictures(Dataset[Row]):
    """Prepared pictures; asked for by number, and in training also by the seed of their augmentation.

    A picture that cannot be read comes with the reason, and black: an exception would lose its words on the way from
    another process.
    """

    def __init__(self, samples: Samples, preprocessing: Preprocessing) -> None:
        self.samples, self.preprocessing = samples, preprocessing

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, which: int | tuple[int, int]) -> Row:
        index, seed = which if isinstance(which, tuple) else (which, None)
        label, size = self.samples.labels[index], self.preprocessing.size
        try:
            image = self.samples.image(index)
        except PolycovError as error:
            return torch.zeros(3, size, size), label, index, str(error)
        x = self.preprocessing(image) if seed is None else self.preprocessing.augmented(image, seed)
        return x, label, index, ""


def number_from(*parts: object) -> int:
    """Returns a seed that depends on all parts, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def epoch_order(count: int, batch: int, seed: int, epoch: int) -> list[list[int]]:
    """Returns the numbers of the pictures of each batch of an epoch.

    Batches are all of the same size; the few pictures that are left over, others each epoch, wait for the next.
    """
    generator = torch.Generator().manual_seed(number_from(seed, "order", epoch))
    order = torch.randperm(count, generator=generator).tolist()
    batch = min(batch, count)
    return [order[i : i + batch] for i in range(0, count - batch + 1, batch)]


def load(
    samples: Samples,
    preprocessing: Preprocessing,
    batches: Sequence[Sequence[int | tuple[int, int]]],
    workers: int = 0,
    skip: Callable[[int, str], object] | None = None,
) -> Iterator[Batch]:
    """Yields batches of prepared pictures: images (B, 3, H, W), labels (B,), numbers (B,).

    Args:
        samples: to take from.
        preprocessing: to prepare them with.
        batches: the numbers of the pictures of each batch, or pairs of number and seed of the augmentation.
        workers: processes that prepare pictures beside this one.
        skip: told the number of a picture that cannot be read, and why; it is then left out of its batch.

    Raises:
        PolycovError: on a picture that cannot be read, without ``skip``.
    """
    loader: DataLoader[Row] = DataLoader(
        Pictures(samples, preprocessing),
        batch_sampler=batches,  # type: ignore[arg-type]
        num_workers=min(workers, len(batches)),
        pin_memory=torch.cuda.is_available(),
    )
    for images, labels, numbers, problems in loader:
        wrong = [i for i, problem in enumerate(problems) if problem]
        for i in wrong:
            if skip is None:
                raise PolycovError(problems[i])
            skip(int(numbers[i]), problems[i])
        right = [i for i in range(len(problems)) if i not in wrong] if wrong else slice(None)
        yield images[right], labels[right], numbers[right]

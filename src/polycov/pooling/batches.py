"""Batches to fit a pool to: features, weights and labels, as a DataLoader gives them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from polycov.errors import PolycovError
from polycov.pooling.tokens import FLOATS, MASKS

Batch = Tensor | Sequence[Tensor | None]
Item = TypeVar("Item")


class FitBatch(NamedTuple):
    """One batch to fit to.

    Attributes:
        features: maps or tokens.
        weights: how much their locations count, or a mask, or None.
        labels: their classes, (B,), or None.
    """

    features: Tensor
    weights: Tensor | None
    labels: Tensor | None


class Repeatable(Generic[Item]):
    """Batches that can be read several times: a function makes them again each time.

    Example:
        >>> batches = Repeatable(lambda: (2 * x for x in range(3)))
        >>> list(batches), list(batches)
        ([0, 2, 4], [0, 2, 4])
    """

    def __init__(self, make: Callable[[], Iterator[Item]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Item]:
        return self.make()


def read_batches(batches: Iterable[Batch]) -> Iterator[FitBatch]:
    """Yields the features, weights and labels of batches: tensors, or tuples (features, weights, labels, …).

    Integers of two or more dimensions are a mask, of one dimension labels; floats with the shape of the locations are
    weights. All may be missing.

    Raises:
        PolycovError: if a batch is neither a tensor nor a tuple.
    """
    for batch in batches:
        if isinstance(batch, Tensor):
            yield FitBatch(batch, None, None)
            continue
        if not isinstance(batch, tuple | list) or not batch:
            raise PolycovError(f"Expected batches to be tensors or tuples of tensors, got {type(batch).__name__}.")
        features, *rest = batch
        tensors = [item for item in rest if isinstance(item, Tensor)]
        weights = rest[0] if tensors and rest[0] is tensors[0] and _are_weights(rest[0], features) else None
        classes = (item for item in tensors if item.dtype in MASKS and item.shape == features.shape[:1])
        labels = next(classes, None)
        yield FitBatch(features, weights, None if labels is None else labels.long())


def _are_weights(item: Tensor, features: Tensor) -> bool:
    """Whether an item of a batch is a mask or weights, not labels."""
    if item.ndim < 2 or item.dtype in MASKS:
        return item.ndim > 1
    locations = features.shape[2:] if features.ndim == 4 else features.shape[1:2]
    return item.dtype in FLOATS and item.shape[1:] in (locations, (locations.numel(),))

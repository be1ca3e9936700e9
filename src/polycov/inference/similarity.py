"""Features ranked by the cosine of the angle to a query: what k-NN and retrieval are made of."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from polycov.errors import NonFiniteError, PolycovError
from polycov.system.memory_budget import MATRICES, UNBOUNDED, Memory
from polycov.system.rows import DiskRows, Rows, read_blocks

BLOCK = 512  # queries at a time, or fewer
BYTES = 64  # for a query and a feature of the gallery, until ranks are known

GalleryRows = Rows | Sequence[Rows]  # features, or several parts of them


def unit_rows(features: Tensor) -> Tensor:
    """Returns features (n, D) divided by their lengths; zero stays zero.

    Raises:
        PolycovError: if they have another shape.
        NonFiniteError: if one is not finite.
    """
    if features.ndim != 2 or 0 in features.shape:
        raise PolycovError(f"Expected features of shape (n, D), got {tuple(features.shape)}.")
    if not bool(features.isfinite().all()):
        raise NonFiniteError("Expected finite features, got NaN or infinity.")
    lengths = features.norm(dim=1, keepdim=True)
    return features / torch.where(lengths == 0, 1.0, lengths)


def gallery_parts(gallery: GalleryRows) -> Sequence[Rows]:
    """Returns the parts of a gallery."""
    return [gallery] if isinstance(gallery, Tensor | DiskRows) else gallery


def ranked(
    queries: Rows, gallery: GalleryRows | None = None, most: int | None = None, memory: Memory = UNBOUNDED
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields, for blocks of queries, the similarities (b, m) to the most similar gallery features, and their indices.

    The similarity is the cosine of the angle. The most similar come first; equal ones in the order of the gallery.

    Args:
        queries: (n, D).
        gallery: (m, D), or several parts of it; without one each query is compared with all other queries.
        most: how many to return; default: all there are.
        memory: how much may be used: fewer queries at a time for larger galleries.

    Raises:
        PolycovError: if there is nothing to compare with, or the dimensions differ.

    Example:
        >>> queries = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
        >>> [(similar, order)] = ranked(queries, most=1)
        >>> order.flatten(), similar.flatten()
        (tensor([2, 2, 0]), tensor([0.8000, 0.6000, 0.8000]))
    """
    parts = [queries] if gallery is None else gallery_parts(gallery)
    size, width = sum(map(len, parts)), parts[0].shape[1]
    available = size - (gallery is None)
    if any(part.shape[1] != queries.shape[1] for part in parts) or available < 1:
        raise PolycovError(
            f"Expected a gallery of features with {queries.shape[1]} dimensions, got {available} with {width}."
        )
    count = available if most is None else min(most, available)
    together = max(1, min(BLOCK, int(MATRICES * memory.limit) // (BYTES * size)))
    for start in range(0, len(queries), together):
        rows = unit_rows(queries[start : start + together])
        cosines = torch.cat([rows @ unit_rows(block).mT for block in read_blocks(parts)], 1)
        if gallery is None:
            own = torch.arange(len(cosines))
            cosines[own, start + own] = -torch.inf  # an image is not its own neighbour
        similar, order = cosines.sort(dim=1, descending=True, stable=True)
        yield similar[:, :count], order[:, :count]

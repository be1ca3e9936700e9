"""Features ranked by the cosine of the angle to a query: what k-NN and retrieval are made of."""

from collections.abc import Iterator

import torch
from torch import Tensor

from polycov.errors import NonFiniteError, PolycovError

BLOCK = 512  # queries at a time


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


def ranked(queries: Tensor, gallery: Tensor | None = None, most: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields, for blocks of queries, the similarities (b, m) to the most similar gallery features, and their indices.

    The similarity is the cosine of the angle. The most similar come first; equal ones in the order of the gallery.

    Args:
        queries: (n, D).
        gallery: (m, D); without one each query is compared with all other queries.
        most: how many to return; default: all there are.

    Raises:
        PolycovError: if there is nothing to compare with, or the dimensions differ.

    Example:
        >>> queries = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
        >>> [(similar, order)] = ranked(queries, most=1)
        >>> order.flatten(), similar.flatten()
        (tensor([2, 2, 0]), tensor([0.8000, 0.6000, 0.8000]))
    """
    rows = unit_rows(queries)
    columns = rows if gallery is None else unit_rows(gallery)
    available = len(columns) - (gallery is None)
    if columns.shape[1] != rows.shape[1] or available < 1:
        raise PolycovError(
            f"Expected a gallery of features with {rows.shape[1]} dimensions, got {available} with {columns.shape[1]}."
        )
    count = available if most is None else min(most, available)
    for start in range(0, len(rows), BLOCK):
        cosines = rows[start : start + BLOCK] @ columns.mT
        if gallery is None:
            own = torch.arange(len(cosines))
            cosines[own, start + own] = -torch.inf  # an image is not its own neighbour
        similar, order = cosines.sort(dim=1, descending=True, stable=True)
        yield similar[:, :count], order[:, :count]

"""Retrieval: are the images of the same class among the most similar ones?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.inference.similarity import GalleryRows, gallery_parts, ranked
from polycov.system.memory_budget import UNBOUNDED, Memory
from polycov.system.rows import Rows


@dataclass(frozen=True)
class Retrieval:
    """What each query finds.

    Attributes:
        found: by K, whether one of the K most similar images has the class of the query, (n,); its mean is recall@K.
        precision: average precision of each query, (n,); its mean is mAP.
    """

    found: dict[int, Tensor]
    precision: Tensor

    def recall(self, k: int) -> float:
        """Recall@K: the share of queries that find their class among the K most similar images."""
        return float(self.found[k].double().mean())

    @property
    def mean_average_precision(self) -> float:
        """The mean of the average precisions, mAP."""
        return float(self.precision.mean())


def retrieve(
    queries: Rows,
    query_labels: Tensor,
    gallery: GalleryRows | None = None,
    labels: Tensor | None = None,
    at: Sequence[int] = (1, 10),
    memory: Memory = UNBOUNDED,
) -> Retrieval:
    """Ranks a gallery by cosine for each query.

    Where the images of the class of the query are at the ranks r₁ < … < r_R of the whole gallery, the average precision
    is (1/R) Σᵢ i / rᵢ; recall@K asks whether r₁ ≤ K.

    Args:
        queries: features, (n, D).
        query_labels: their classes, (n,).
        gallery: features, (m, D), or several parts of it; without one each query searches all other queries.
        labels: classes of the gallery, (m,).
        at: the K of recall@K.
        memory: how much may be used.

    Raises:
        PolycovError: if labels do not fit features, or nothing in the gallery has the class of a query.

    Example:
        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [0.6, 0.8]])
        >>> result = retrieve(features, torch.tensor([0, 1, 0, 1]), at=[1, 2])
        >>> result.recall(1), result.recall(2), result.mean_average_precision
        (0.5, 1.0, 0.75)
    """
    relevant_labels = query_labels if gallery is None else labels
    known = len(queries) if gallery is None else sum(map(len, gallery_parts(gallery)))
    if relevant_labels is None or len(relevant_labels) != known or len(query_labels) != len(queries):
        raise PolycovError("Expected a label for each query and each feature of the gallery.")
    found: dict[int, list[Tensor]] = {k: [] for k in at}
    precision, start = [], 0
    for _, order in ranked(queries, gallery, memory=memory):
        relevant = relevant_labels[order] == query_labels[start : start + len(order), None]
        start += len(order)
        hits = relevant.cumsum(1)
        if bool((hits[:, -1] == 0).any()):
            raise PolycovError("Expected an image of the class of each query in the gallery; some classes have none.")
        ranks = torch.arange(1, relevant.shape[1] + 1, dtype=torch.float64)
        precision.append((hits / ranks * relevant).sum(1) / hits[:, -1])
        for k in at:
            found[k].append(hits[:, min(k, hits.shape[1]) - 1] > 0)
    return Retrieval({k: torch.cat(parts) for k, parts in found.items()}, torch.cat(precision))

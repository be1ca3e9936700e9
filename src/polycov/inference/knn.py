"""k nearest neighbours: a classifier that is not trained."""

from collections.abc import Sequence

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.inference.similarity import GalleryRows, gallery_parts, ranked
from polycov.system.memory_budget import UNBOUNDED, Memory
from polycov.system.rows import Rows

TEMPERATURE = 0.07
NEIGHBOURS = (1, 3, 5, 10, 20, 50)  # among which k is chosen


def predict_knn(
    queries: Rows,
    labels: Tensor,
    gallery: GalleryRows | None = None,
    k: Sequence[int] = NEIGHBOURS,
    memory: Memory = UNBOUNDED,
) -> dict[int, Tensor]:
    """Returns the class of each query by a vote of its k nearest neighbours, (n,), for several k at once.

    The nearest have the largest cosine s, and vote with the weight exp(s / 0.07). Of equal
    votes the smaller label wins.

    Args:
        queries: features, (n, D).
        labels: classes of the gallery, (m,), or without one, of the queries.
        gallery: features, (m, D), or several parts of it; without one the neighbours of each query are among the other
            queries.
        k: numbers of neighbours; those above the size of the gallery vote with all of it.
        memory: how much may be used.

    Raises:
        PolycovError: if there are not as many labels as gallery features, or a k is below 1.

    References:
        Wu et al. 2018, "Unsupervised feature learning via non-parametric instance discrimination": weight and
        temperature.

    Example:
        >>> gallery, labels = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> predict_knn(torch.tensor([[0.1, 1.0]]), labels, gallery, k=[1, 3])
        {1: tensor([1]), 3: tensor([1])}
    """
    known = len(queries) if gallery is None else sum(map(len, gallery_parts(gallery)))
    if len(labels) != known:
        raise PolycovError(f"Expected a label for each of the {known} features, got {len(labels)}.")
    if not k or min(k) < 1:
        raise PolycovError(f"Expected numbers of neighbours of at least 1, got {list(k)}.")
    found: dict[int, list[Tensor]] = {count: [] for count in k}
    for similar, order in ranked(queries, gallery, max(k), memory):
        weights = ((similar.double() - 1) / TEMPERATURE).exp()
        votes = torch.zeros(len(order), int(labels.max()) + 1, dtype=torch.float64)
        cast = 0
        for count in sorted(found):
            votes.scatter_add_(1, labels[order[:, cast:count]], weights[:, cast:count])
            cast = count
            found[count].append(votes.argmax(1))
    return {count: torch.cat(parts) for count, parts in found.items()}


def choose_neighbours(
    queries: Rows,
    query_labels: Tensor,
    gallery: GalleryRows | None = None,
    labels: Tensor | None = None,
    memory: Memory = UNBOUNDED,
) -> tuple[int, Tensor]:
    """Returns the k of `NEIGHBOURS` with the highest accuracy, the smallest of equal ones, and which queries it gets
    right; arguments as in `predict_knn`, with the labels of both.
    """
    predictions = predict_knn(queries, query_labels if labels is None else labels, gallery, memory=memory)
    correct = {k: predicted == query_labels for k, predicted in predictions.items()}
    best = max(correct, key=lambda k: (int(correct[k].sum()), -k))
    return best, correct[best]

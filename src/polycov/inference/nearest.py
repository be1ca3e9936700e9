"""The nearest of very many features by cosine: exactly, or among candidates from an index."""

from collections.abc import Iterable

import torch
from torch import Tensor

from polycov.inference.gallery import Gallery
from polycov.inference.search_index import SearchIndex
from polycov.progress import SILENT, Progress

CANDIDATES = 10  # from the index for each image asked for, whose cosines are then computed
LEAST = 200  # candidates
Neighbours = list[tuple[int, float]]  # numbers of images, and cosines


def exact_nearest(
    queries: Tensor, blocks: Iterable[tuple[int, Tensor]], top: int, progress: Progress = SILENT, total: int = 0
) -> list[Neighbours]:
    """Returns the nearest images of each query in one pass, the largest cosine first; equal ones in their order.

    Args:
        queries: unit features, (Q, D).
        blocks: the number of a first image, and the unit features of it and the next ones, one block at a time.
        top: how many to find.
        progress: receives the blocks done.
        total: number of blocks.
    """
    best, numbers = torch.zeros(len(queries), 0), torch.zeros(len(queries), 0, dtype=torch.long)
    with progress.task("searching", total) as task:
        for first, block in blocks:
            cosines = torch.cat([best, queries @ block.mT], 1)
            places = torch.arange(first, first + len(block)).expand(len(queries), -1)
            best, order = (part[:, :top] for part in cosines.sort(dim=1, descending=True, stable=True))
            numbers = torch.cat([numbers, places], 1).gather(1, order)
            task.advance()
    pairs = zip(numbers.tolist(), best.tolist(), strict=True)
    return [list(zip(images, cosines, strict=True)) for images, cosines in pairs]


def indexed_nearest(queries: Tensor, gallery: Gallery, index: SearchIndex, top: int) -> list[Neighbours]:
    """Returns the nearest of the candidates of an index, for each query the largest cosine first.

    The index finds candidates by compressed features; their cosines are computed from the features themselves.
    """
    candidates = [sorted(row) for row in index.candidates(queries, max(CANDIDATES * top, LEAST))]
    found = gallery.rows(number for row in candidates for number in row)
    result = []
    for query, numbers in zip(queries, candidates, strict=True):
        cosines = torch.stack([found[number][1] for number in numbers]) @ query
        order = cosines.argsort(descending=True, stable=True)[:top].tolist()
        result.append([(numbers[i], float(cosines[i])) for i in order])
    return result

"""Few-shot classification: episodes with a prototype for each class."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.inference.similarity import GalleryRows, gallery_parts, unit_rows
from polycov.system.rows import Rows

QUERIES = 15  # at most, per class and episode


@dataclass(frozen=True)
class Episode:
    """Some images of a few classes, drawn at random.

    Attributes:
        support: indices of the labelled images, (ways, shots): a row for each class.
        queries: indices of the images to classify, (q,).
        targets: the row in ``support`` of the class of each query, (q,).
    """

    support: Tensor
    queries: Tensor
    targets: Tensor


def draw_episodes(
    labels: Tensor,
    support_labels: Tensor | None = None,
    *,
    ways: int = 5,
    shots: int = 1,
    count: int = 600,
    seed: int = 0,
) -> list[Episode]:
    """Draws episodes: ``ways`` classes, ``shots`` labelled images and up to 15 queries of each.

    They depend on the labels and the seed alone, so all features are judged by the same ones.

    Args:
        labels: classes of the images that queries are drawn from, (n,).
        support_labels: classes of the images that labelled ones are drawn from, (m,); default: the same images, each of
            them used at most once in an episode.
        ways: number of classes.
        shots: labelled images of each class.
        count: number of episodes.
        seed: seed of the draw.

    Raises:
        PolycovError: if a number makes no sense, or too few classes have enough images.
    """
    for name, value, least in (("ways", ways, 2), ("shots", shots, 1), ("episodes", count, 1)):
        if value < least:
            raise PolycovError(f"Expected {name} to be at least {least}, got {value}.")
    apart = support_labels is not None
    queries, support = _by_class(labels), _by_class(labels if support_labels is None else support_labels)
    enough = [c for c, members in queries.items() if len(support.get(c, ())) >= shots + (not apart) and len(members)]
    if len(enough) < ways:
        raise PolycovError(
            f"Expected {ways} classes with at least {shots + 1} images for {ways}-way {shots}-shot episodes, got "
            f"{len(enough)}. Choose fewer --ways or --shots."
        )
    generator = torch.Generator().manual_seed(seed)
    episodes = []
    for _ in range(count):
        chosen = [enough[int(i)] for i in torch.randperm(len(enough), generator=generator)[:ways]]
        rows, asked = [], []
        for label in chosen:
            drawn = _shuffled(support[label], generator)
            rows.append(drawn[:shots])
            asked.append((_shuffled(queries[label], generator) if apart else drawn[shots:])[:QUERIES])
        targets = [torch.full((len(indices),), row) for row, indices in enumerate(asked)]
        episodes.append(Episode(torch.stack(rows), torch.cat(asked), torch.cat(targets)))
    return episodes


def _by_class(labels: Tensor) -> dict[int, Tensor]:
    return {int(label): torch.nonzero(labels == label).flatten() for label in labels.unique()}


def _shuffled(indices: Tensor, generator: torch.Generator) -> Tensor:
    return indices[torch.randperm(len(indices), generator=generator)]


def prototype_accuracy(episodes: Sequence[Episode], queries: Rows, support: GalleryRows | None = None) -> Tensor:
    """Returns the accuracy of each episode, (episodes,), in float64.

    Features are divided by their lengths. The prototype of a class is the mean of its labelled features (Snell et al.
    2017, "Prototypical networks for few-shot learning"); a query belongs to the prototype with the largest cosine.

    Args:
        episodes: from `draw_episodes`.
        queries: features that the queries are drawn from, (n, D).
        support: features that the labelled ones are drawn from, (m, D), or several parts of them; default: the same.

    Example:
        >>> features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> prototype_accuracy(draw_episodes(torch.tensor([0, 0, 1, 1]), ways=2, count=2), features)
        tensor([1., 1.], dtype=torch.float64)
    """
    parts = [queries] if support is None else gallery_parts(support)
    accuracies = []
    for episode in episodes:
        labelled = unit_rows(_select(parts, episode.support.flatten())).unflatten(0, episode.support.shape)
        prototypes = unit_rows(labelled.mean(1))
        predicted = (unit_rows(queries[episode.queries]) @ prototypes.mT).argmax(1)
        accuracies.append((predicted == episode.targets).double().mean())
    return torch.stack(accuracies)


def _select(parts: Sequence[Rows], indices: Tensor) -> Tensor:
    """Rows of several parts, by their indices in all of them."""
    result = torch.empty(len(indices), parts[0].shape[1], dtype=parts[0][:1].dtype)
    begin = 0
    for part in parts:
        inside = (indices >= begin) & (indices < begin + len(part))
        result[inside] = part[indices[inside] - begin]
        begin += len(part)
    return result

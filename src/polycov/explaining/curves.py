"""Deletion and insertion curves: the score of an image while its regions disappear, or appear, in a given order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polycov.errors import PolycovError

Scores = Callable[[Tensor], Tensor]  # masks of hidden cells (S, N) to scores (S, K)


@dataclass(frozen=True)
class Curves:
    """Scores while regions are hidden (deletion) or shown (insertion), largest contribution first.

    Attributes:
        deletion: at each step, (steps, K); the first is the whole image, the last shows nothing.
        insertion: at each step, (steps, K); the first shows nothing, the last is the whole image.
    """

    deletion: Tensor
    insertion: Tensor


def step_counts(cells: int, step: float) -> list[int]:
    """Returns the number of cells hidden at each step, from none to all.

    Raises:
        PolycovError: if the step is not above 0 and at most 1.

    Example:
        >>> step_counts(49, 0.25)
        [0, 12, 24, 37, 49]
    """
    if not 0 < step <= 1:
        raise PolycovError(f"Expected a step above 0 and at most 1, as a fraction of the area, got {step}.")
    steps = max(round(1 / step), 1)
    return sorted({round(cells * i / steps) for i in range(steps + 1)})


def rank_cells(contributions: Tensor, generator: torch.Generator) -> Tensor:
    """Returns the indices of cells, largest contribution first; equal ones in random order.

    Example:
        >>> rank_cells(torch.tensor([0.1, 0.3, 0.2]), torch.Generator())
        tensor([1, 2, 0])
    """
    shuffled = torch.randperm(len(contributions), generator=generator)
    return shuffled[contributions.cpu()[shuffled].argsort(descending=True, stable=True)]


def measure_curves(order: Tensor, counts: Sequence[int], scores: Scores, ends: tuple[Tensor, Tensor]) -> Curves:
    """Measures both curves.

    Args:
        order: indices of the cells, (N,), first to hide or show first.
        counts: cells hidden or shown at each step, from 0 to N.
        scores: of masks.
        ends: scores of the whole image and of the hidden image, (K,) each.

    Returns:
        The curves.
    """
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    inner = torch.tensor(list(counts[1:-1]), dtype=torch.long)[:, None]
    measured = scores(torch.cat([rank < inner, rank >= inner]))  # hidden from the first, and from the last
    whole, nothing = (end[None] for end in ends)
    deletion, insertion = measured[: len(inner)], measured[len(inner) :]
    return Curves(torch.cat([whole, deletion, nothing]), torch.cat([nothing, insertion, whole]))


def area_under(curve: Tensor, counts: Sequence[int]) -> Tensor:
    """Returns the area under curves (steps, …) over the fraction of the area hidden or shown, by the trapezoid rule.

    Example:
        >>> area_under(torch.tensor([1.0, 0.0, 0.0]), [0, 2, 4])
        tensor(0.2500)
    """
    fractions = torch.tensor(counts, dtype=curve.dtype) / counts[-1]
    return torch.trapezoid(curve, fractions, dim=0)

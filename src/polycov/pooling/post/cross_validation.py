"""Choosing how strongly to shrink, and how much each block counts, without validation images.

A ridge regression of the indicators Y of the classes on n features has the outputs H Y + mean, with
H = X (S + αI)⁻¹ Xᵀ, X the centred features and S = XᵀX their scatter. Its *generalised cross-validation* error

    n ‖(I − H) Y‖² / (n − 1 − tr H)²,    Y centred,

is close to the squared error of images that are left out of the fit one at a time. With S = V diag(λ) Vᵀ and
P = Vᵀ Xᵀ Y, the sums of the classes, it is a sum over eigenvalues: H has λ / (λ + α), and ‖Y‖² along them is Σ P² / λ.
So it follows from the mean, the scatter and the sum of each class, and one decomposition serves every α.

Reference: Golub, Heath, Wahba, "Generalized Cross-Validation as a Method for Choosing a Good Ridge Parameter",
Technometrics 1979.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.pooling.post.pca import RANK, Spectrum, spectrum
from polycov.pooling.post.statistics import Statistics

STRENGTHS = tuple(10.0 ** (i / 2) for i in range(-5, 3))  # α over the mean squared length of a feature
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # of one block, relative to the others
COMPONENTS = 1024  # of each block, used to choose the weights
LEAST_GAIN = 1e-6  # in the error, which is at most about 1, that justifies other weights


class Choice(NamedTuple):
    """The smallest generalised cross-validation error, per sample, and the strength that has it."""

    error: float
    strength: float


def choose_strength(values: Tensor, sums: Tensor, counts: Tensor) -> Choice:
    """Returns the strength of a ridge with the smallest generalised cross-validation error, of `STRENGTHS`.

    Args:
        values: λ, positive, (r,).
        sums: the sums of the centred features of each class, in the eigenvectors of the scatter, (K, r).
        counts: the number of samples of each class, (K,).
    """
    samples = float(counts.sum())
    along = sums.square().sum(0) / values  # ‖Y‖² along each eigenvector
    rest = float((counts * (1 - counts / samples)).sum() - along.sum())
    choices = []
    for strength in STRENGTHS:
        kept = values / (values + strength * float(values.sum()) / samples)
        residual = max(rest, 0.0) + float((along * (1 - kept).square()).sum())
        free = samples - 1 - float(kept.sum())
        choices.append(Choice(samples * residual / free**2 if free > 0 else float("inf"), strength))
    return min(choices)


def class_counts(statistics: Statistics) -> Tensor:
    """Returns the number of samples of each class, (K,), in float64.

    Raises:
        PolycovError: if there are rows without labels.
    """
    if not statistics.labelled:
        raise PolycovError("A fit to classes needs labels: expected batches (features, labels), as from a DataLoader.")
    return torch.tensor([float(n) for n, _ in statistics.class_sums().values()], dtype=torch.float64)


class BlockMixture:
    """Blocks of features of which each can be weighted, reduced to their leading principal components.

    Args:
        statistics: of the features, with labels.
        blocks: the sizes of the blocks; they add up to D.
        factors: factors that bring each block to the same energy, (D,).
    """

    def __init__(self, statistics: Statistics, blocks: tuple[int, ...], factors: Tensor) -> None:
        self.counts = class_counts(statistics)
        starts = torch.tensor([0, *blocks]).cumsum(0).tolist()
        parts = [
            spectrum(statistics.after(lambda x, a=start, b=start + size: x[:, a:b]))  # type: ignore[misc]
            for start, size in zip(starts, blocks, strict=False)
        ]
        self.sizes = [min(len(part.values), COMPONENTS) for part in parts]
        scales = [factors[start] for start in starts[:-1]]
        reduced = self._reduced(statistics, blocks, parts, scales)
        reduced.fold()
        self.scatter: Tensor = reduced.scatter  # type: ignore[assignment]  # there are samples
        mean: Tensor = reduced.mean  # type: ignore[assignment]
        totals = torch.stack([total for _, total in reduced.class_sums().values()])
        self.sums = totals - self.counts.to(totals)[:, None] * mean

    def _reduced(
        self, statistics: Statistics, blocks: tuple[int, ...], parts: list[Spectrum], scales: list[Tensor]
    ) -> Statistics:
        """The statistics of the leading components of each block, side by side."""
        kept = list(zip(parts, self.sizes, scales, strict=True))
        rows = statistics.rows()
        if rows is None:
            bases = [part.leading(k) * scale for part, k, scale in kept]
            return statistics.after(
                lambda x: torch.cat([y.double() @ basis for y, basis in zip(x.split(blocks, 1), bases, strict=True)], 1)
            )
        columns = []
        for x, (part, k, scale) in zip(rows.split(blocks, 1), kept, strict=True):
            known = part.coordinates()
            columns.append((part.project(x - part.mean) if known is None else known)[:, :k] * scale)
        result = Statistics()
        result.update(torch.cat(columns, 1), torch.cat([x for _, x in statistics.stored if x is not None]))
        return result

    def choose(self, weights: tuple[float, ...]) -> Choice:
        """Returns the best strength with these weights, and its error."""
        scale = torch.cat([torch.full((n,), w) for n, w in zip(self.sizes, weights, strict=True)]).to(self.scatter)
        values, vectors = torch.linalg.eigh(self.scatter * scale * scale[:, None])
        keep = values > RANK * values[-1:].clamp(min=0)
        if not keep.any():
            return Choice(float("inf"), STRENGTHS[-1])
        return choose_strength(values[keep], (self.sums * scale) @ vectors[:, keep], self.counts.to(values))


def choose_weights(statistics: Statistics, blocks: tuple[int, ...], factors: Tensor) -> tuple[float, ...]:
    """Returns the weight of each block with the smallest error, found block by block from equal ones.

    A weight of 0 leaves a block out, so that what only adds noise cannot harm; but never all of them.

    Args:
        statistics: of the features, with labels.
        blocks: the sizes of the blocks.
        factors: factors that bring each block to the same energy, (D,).

    Raises:
        PolycovError: if there are rows without labels.
    """
    mixture = BlockMixture(statistics, blocks, factors)
    best = (1.0,) * len(blocks)
    error = mixture.choose(best).error
    for i in range(len(blocks)):
        for weight in WEIGHTS if i < len(blocks) - 1 else (0.0,):  # only ratios matter
            weights = (*best[:i], weight, *best[i + 1 :])
            found = mixture.choose(weights).error if any(weights) and weights != best else float("inf")
            if found < error - LEAST_GAIN:
                best, error = weights, found
    return best

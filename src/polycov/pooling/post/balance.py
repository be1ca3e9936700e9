"""Features side by side, brought to the same energy."""

import torch
from torch import Tensor

from polycov.errors import PolycovError, finite_number, one_of
from polycov.pooling.post.base import FittedPost
from polycov.pooling.post.cross_validation import choose_weights
from polycov.pooling.post.statistics import Statistics
from polycov.pooling.registry import register


def balancing_factors(variances: Tensor, blocks: tuple[int, ...], weights: tuple[float, ...]) -> Tensor:
    """Returns w_b / √(the sum of the variances of block b), for each entry, (D,). A constant block is only weighted.

    Args:
        variances: of every entry, (D,).
        blocks: the sizes of the blocks; they add up to D.
        weights: w, of every block.

    Example:
        >>> balancing_factors(torch.tensor([3.0, 1.0, 16.0]), (2, 1), (1.0, 2.0))
        tensor([0.5000, 0.5000, 0.5000])
    """
    factors = []
    for part, weight in zip(variances.split(blocks), weights, strict=True):
        energy = part.sum()
        factors.append((weight * torch.where(energy > 0, energy, 1.0).rsqrt()).expand(len(part)))
    return torch.cat(factors)


FITS = ("energy", "classes")


@register("post", "balance", "balance", "balance(2)", "balance(fit=classes)")
class Balance(FittedPost):
    """Scales each of the features side by side so that its variance on training features adds up to weight².

    What has many large entries would otherwise outweigh the rest in principal components and regularised classifiers.
    Fitted by ``pool.fit(batches)``. For a scale of each sample instead, end the specs of the features with ``l2``.

    Args:
        weights: one for each of the features side by side; none for all 1.
        fit: energy, for these weights; classes, for the weights, 0 included, with the smallest generalised
            cross-validation error of a ridge classifier (`polycov.pooling.post.cross_validation`): batches come with
            labels.
        features: the dimension of the input.
        blocks: the sizes of the features side by side.
    """

    degree = 1.0
    factors: Tensor

    def __init__(self, *weights: float, fit: str = "energy", features: int, blocks: tuple[int, ...]) -> None:
        super().__init__(features)
        self.blocks, self.kind = blocks, one_of("balance", "fit", fit, FITS)
        if fit == "classes" and weights:
            raise PolycovError("balance(fit=classes) chooses the weights: expected none.")
        if len(weights) not in (0, len(blocks)):
            raise PolycovError(
                f"Expected as many weights of balance as there are features side by side, {len(blocks)}, or none, got "
                f"{len(weights)}."
            )
        self.weights = tuple(finite_number("balance", "weight", w, 0, 1e6) for w in weights) or (1.0,) * len(blocks)
        self.register_buffer("factors", torch.zeros(features))

    @torch.no_grad()
    def fit(self, statistics: Statistics) -> None:
        """Sets the scale of each block.

        Raises:
            PolycovError: if there are no samples, or a fit to classes gets no labels.
        """
        if not statistics.samples:
            raise PolycovError("Cannot fit balance to 0 samples.")
        _, variances = statistics.spread()
        equal = balancing_factors(variances, self.blocks, (1.0,) * len(self.blocks))
        chosen = choose_weights(statistics, self.blocks, equal) if self.kind == "classes" else self.weights
        self.factors.copy_(balancing_factors(variances, self.blocks, chosen))
        self._set_fitted()

    def forward(self, x: Tensor) -> Tensor:
        self._require_fitted("balance")
        return x * self.factors.to(x.dtype)

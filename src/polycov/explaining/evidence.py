"""The contributions of locations, pairs of locations and pairs of channels to a linear score of a pooled feature.

`polycov.explaining.second_order` takes a function of a second-order statistic apart. Stages after the vector that are
affine (``project``, ``balance``) are followed exactly. Normalisations (``signed_sqrt``, ``l2``) multiply each entry by
a factor that depends on the input; the factors of this input are held fixed, which keeps the sum exact. Only they need
the vector itself. Of features side by side, each has its part of the weights.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError
from polycov.explaining.pull_back import through_posts
from polycov.explaining.second_order import second_order_evidence
from polycov.pooling.first_order import FirstOrder
from polycov.pooling.first_order_pool import FirstOrderPool
from polycov.pooling.plan import at_least_float32
from polycov.pooling.pool import Pool, SecondOrderPool
from polycov.pooling.side_by_side import SideBySidePool
from polycov.pooling.tokens import as_tokens


class Evidence(Protocol):
    """What the features of a batch are made of. Weights are (B, D), of a score ⟨weights, feature⟩."""

    def pull_back(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Returns weights of the vector, before later stages, and a constant, (B,), with the same score."""

    def locations(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the contribution of each location, (B, N), and a constant, (B,); together they are the score."""

    def pairs(self, weights: Tensor) -> Tensor:
        """Returns the contribution of each pair of locations, (B, N, N), symmetric; rows add up to `locations`."""

    def channel_pairs(self, weights: Tensor) -> Tensor:
        """Returns the contribution of each pair of channels, (B, C, C), or of each channel on the diagonal."""


def collect_evidence(pool: Pool, features: Tensor, weights: Tensor | None = None) -> Evidence:
    """Computes what the pooled features of a batch are made of.

    Args:
        pool: that pools the features.
        features: maps (B, C, H, W) or tokens (B, N, C), as the pool takes them.
        weights: of the locations, or a mask, as the pool takes them.

    Raises:
        PolycovError: if the pool has no exact decomposition.
    """
    tokens, weights = as_tokens(features, weights)
    if pool.prefix_tokens:
        raise PolycovError("A pool that reads a class token cannot be explained by regions.")
    with torch.no_grad():
        if isinstance(pool, SecondOrderPool):
            return second_order_evidence(pool, pool.select(tokens), weights)
        if isinstance(pool, FirstOrderPool):
            tokens = pool.select(tokens).to(at_least_float32(tokens.dtype))
            return FirstOrderEvidence(pool, tokens, weights)
        if isinstance(pool, SideBySidePool):
            parts = [collect_evidence(part, tokens, weights) for part in pool.parts]
            return SideBySideEvidence(pool, tokens, weights, parts)
    raise PolycovError(
        f"There is no exact explanation of {pool.spec!r}, which pools two inputs or two reductions of one. "
        "Explain a pool of one input, such as 'isqrt-cov'."
    )


@dataclass(frozen=True)
class FirstOrderEvidence:
    """Features that are sums over locations.

    Attributes:
        pool: pool that made the features.
        tokens: local features, (B, N, C).
        token_weights: weights or mask of the tokens.
    """

    pool: FirstOrderPool
    tokens: Tensor
    token_weights: Tensor | None

    @cached_property
    def vector(self) -> Tensor:
        """What is pooled, before any later stage, (B, C)."""
        with torch.no_grad():
            return self.pool.pooling(self.tokens, self.token_weights)

    def pull_back(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the feature as weights of the vector, (B, C), and a constant, (B,)."""
        return through_posts(self.pool, weights.to(self.tokens.dtype), lambda: self.vector)

    def locations(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions of locations, (B, N), and the constant, (B,)."""
        inner, constant = self.pull_back(weights)
        pooling: FirstOrder = self.pool.pooling
        with torch.no_grad():
            return pooling.contributions(self.tokens, inner, self.token_weights), constant

    def pairs(self, weights: Tensor) -> Tensor:
        """Contributions of pairs: a location only goes with itself."""
        return torch.diag_embed(self.locations(weights)[0])

    def channel_pairs(self, weights: Tensor) -> Tensor:
        """Contributions of channels, on the diagonal."""
        return torch.diag_embed(self.vector * self.pull_back(weights)[0])


@dataclass(frozen=True)
class SideBySideEvidence:
    """Features side by side: a score is the sum of scores of the parts.

    Attributes:
        pool: pool that made the features.
        tokens: local features, (B, N, C).
        token_weights: weights or mask of the tokens.
        parts: evidence of each part.
    """

    pool: SideBySidePool
    tokens: Tensor
    token_weights: Tensor | None
    parts: list[Evidence]

    @cached_property
    def vector(self) -> Tensor:
        """The features side by side, before any later stage."""
        with torch.no_grad():
            return self.pool.features(self.tokens, self.token_weights, 0)

    def pull_back(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the feature as weights of the vectors of all parts, and a constant, (B,)."""
        pieces, constant = self._split(weights)
        inner = [part.pull_back(piece) for part, piece in pieces]
        return torch.cat([one for one, _ in inner], -1), constant + _sum([one for _, one in inner])

    def _split(self, weights: Tensor) -> tuple[list[tuple[Evidence, Tensor]], Tensor]:
        """Each part with its weights, and the constant of the stages that follow."""
        weights = weights.to(at_least_float32(self.tokens.dtype))
        inner, constant = through_posts(self.pool, weights, lambda: self.vector)
        pieces = inner.split([part.out_features for part in self.pool.parts], -1)
        return list(zip(self.parts, pieces, strict=True)), constant

    def locations(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions of locations, (B, N), and the constant, (B,)."""
        pieces, constant = self._split(weights)
        sums = [part.locations(piece) for part, piece in pieces]
        return _sum([one for one, _ in sums]), constant + _sum([one for _, one in sums])

    def pairs(self, weights: Tensor) -> Tensor:
        """Contributions of pairs of locations, (B, N, N)."""
        return _sum([part.pairs(piece) for part, piece in self._split(weights)[0]])

    def channel_pairs(self, weights: Tensor) -> Tensor:
        """Contributions of pairs of channels, (B, C, C); of one more channel if a part is a Gaussian embedding."""
        tables = [part.channel_pairs(piece) for part, piece in self._split(weights)[0]]
        placed = [_placed(part, table) for part, table in zip(self.pool.parts, tables, strict=True)]
        most = max(table.shape[-1] for table in placed)
        return _sum([nn.functional.pad(table, (0, most - table.shape[-1]) * 2) for table in placed])


def _placed(pool: Pool, table: Tensor) -> Tensor:
    """Contributions of pairs of the channels that a pool selects, (B, C, C), in a table of all channels; the constant
    of a Gaussian embedding follows them.
    """
    if pool.source is None:
        return table
    first, width, extra = pool.source.first, pool.width, table.shape[-1] - pool.width
    places = [*range(first, first + width), *range(pool.channels, pool.channels + extra)]
    whole = table.new_zeros(len(table), pool.channels + extra, pool.channels + extra)
    rows = torch.tensor(places, device=table.device)
    whole[:, rows[:, None], rows] = table
    return whole


def _sum(tensors: list[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0])

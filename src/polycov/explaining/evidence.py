"""The contributions of locations, pairs of locations and pairs of channels to a linear score of a pooled feature.

A second-order feature is linear in q(C) = b I + Σ_nm r(S)_nm x_n x_mᵀ, with rows x_n and their Gram matrix S. So with M
the adjoint of the vector stage applied to the weights of a score, the score is

    ⟨M, q(C)⟩ = b tr M + Σ_nm r(S)_nm x_nᵀ M x_m = b tr M + Σ_n (X r(C))_n · M x_n,

a sum over pairs of locations, and, since r(S) X = X r(C), over locations at the cost of a forward pass. Stages after
the vector that are affine (``project``, ``balance``) are followed exactly. Normalisations (``signed_sqrt``, ``l2``)
multiply each entry by a factor that depends on the input; the factors of this input are held fixed, which keeps the sum
exact. Only they need the vector itself. Of features side by side, each has its part of the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError
from polycov.explaining.pull_back import through_posts
from polycov.pooling.first_order import FirstOrder
from polycov.pooling.first_order_pool import FirstOrderPool
from polycov.pooling.functions.base import MatrixFunction, add_identity, split_trace
from polycov.pooling.moments import second_moment, with_roots
from polycov.pooling.plan import Algorithm, at_least_float32, cheapest_route, choose_dtype
from polycov.pooling.pool import Pool, SecondOrderPool
from polycov.pooling.shrinkage import shrink
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
        raise PolycovError("There is no explanation by regions of a pool that reads a class token.")
    with torch.no_grad():
        if isinstance(pool, SecondOrderPool):
            return _second_order(pool, tokens, weights)
        if isinstance(pool, FirstOrderPool):
            tokens = tokens.to(at_least_float32(tokens.dtype))
            return FirstOrderEvidence(pool, tokens, weights)
        if isinstance(pool, SideBySidePool):
            parts = [collect_evidence(part, tokens, weights) for part in pool.parts]
            return SideBySideEvidence(pool, tokens, weights, parts)
    raise PolycovError(f"There is no exact explanation of {type(pool).__name__}.")


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
class SecondOrderEvidence:
    """Features that are linear in a function of a second-order statistic.

    Attributes:
        pool: pool that made the features.
        rows: X, (B, N, C).
        left: X r(C), scaled so that leftᵀ rows is the function without its constant, (B, N, C).
        constant: what of the function belongs to no location, (B, C, C): b I, and more if the statistic is shrunk.
        gram_quotient: gives r(S), scaled like ``left``, (B, N, N).
    """

    pool: SecondOrderPool
    rows: Tensor
    left: Tensor
    constant: Tensor
    gram_quotient: Callable[[], Tensor]

    @cached_property
    def matrix(self) -> Tensor:
        """The function of the statistic, q(C), (B, C, C)."""
        return self.left.mT @ self.rows + self.constant

    @cached_property
    def vector(self) -> Tensor:
        """What the vector stage makes of it, before any later stage."""
        with torch.no_grad():
            return self.pool.vector(self.matrix)

    def pull_back(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the feature as weights of the vector, and a constant, (B,)."""
        return through_posts(self.pool, weights.to(self.rows.dtype), lambda: self.vector)

    def _adjoint(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """M of the weights, (B, C, C), and the constant of the stages after the vector, (B,)."""
        inner, constant = self.pull_back(weights)
        channels = self.rows.shape[-1]
        with torch.enable_grad():  # the vector is linear, so its adjoint is its gradient anywhere
            matrix = self.rows.new_zeros(len(self.rows), channels, channels).requires_grad_()
            (adjoint,) = torch.autograd.grad(self.pool.vector(matrix), matrix, inner)
        return 0.5 * (adjoint + adjoint.mT), constant

    def locations(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions of locations, (B, N), and the constant, (B,)."""
        adjoint, constant = self._adjoint(weights)
        contributions = (self.left * (self.rows @ adjoint)).sum(-1)
        return contributions, constant + (self.constant * adjoint).sum((1, 2))

    def pairs(self, weights: Tensor) -> Tensor:
        """Contributions of pairs of locations, (B, N, N)."""
        adjoint, _ = self._adjoint(weights)
        return self.gram_quotient() * (self.rows @ adjoint @ self.rows.mT)

    def channel_pairs(self, weights: Tensor) -> Tensor:
        """Contributions of pairs of channels, (B, C, C)."""
        return self._adjoint(weights)[0] * self.matrix


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
        most = max(table.shape[-1] for table in tables)
        return _sum([nn.functional.pad(table, (0, most - table.shape[-1]) * 2) for table in tables])


def _sum(tensors: list[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0])


def _second_order(pool: SecondOrderPool, tokens: Tensor, weights: Tensor | None) -> SecondOrderEvidence:
    """The parts of q(C'), where C' = (1 − ρ) C + (ρ tr C / p) I is C itself if it is not shrunk: ρ = 0.

    q(C') = b I + C' r(C') = [b I + (ρ tr C / p) r(C')] + (1 − ρ) Σ_n (X r(C'))_n x_nᵀ; what is in brackets has no
    location.
    """
    function = pool.function.explained()
    centred, scale = pool.moment(tokens.to(choose_dtype(function, tokens.dtype)), weights)
    rows = with_roots(centred, weights)
    on_gram = "gram" in pool.moment.routes and cheapest_route(function, *rows.shape[1:]) == "gram"
    unit, trace, root = split_trace(second_moment(rows.mT if on_gram else rows))
    root = root * scale
    intensity = None if on_gram else pool.moment.intensity(unit, centred, weights)
    unit = unit if intensity is None else shrink(unit, intensity)
    intensity = torch.zeros_like(root) if intensity is None else intensity
    algorithm: Algorithm = "eigenvalues" if function.products is None else "products"
    size = root ** (2 * function.degree)
    factor = (size * (1 - intensity) / trace)[:, None, None]
    quotient = function.quotient(unit, root, algorithm)
    left = rows if quotient is None else (quotient @ rows if on_gram else rows @ quotient)
    offset = function.constant(root)
    constant = rows.new_zeros(len(rows), rows.shape[-1], rows.shape[-1])
    constant = constant if offset is None else add_identity(constant, offset * size)
    if not on_gram:
        part = size * intensity / rows.shape[-1]
        constant = add_identity(constant, part) if quotient is None else constant + part[:, None, None] * quotient

    def gram_quotient() -> Tensor:
        return (factor * _gram_quotient(function, rows, trace, root, intensity, algorithm)).to(rows.dtype)

    return SecondOrderEvidence(pool, rows, factor * left, constant, gram_quotient)


def _gram_quotient(
    function: MatrixFunction, rows: Tensor, trace: Tensor, root: Tensor, intensity: Tensor, algorithm: Algorithm
) -> Tensor:
    """r(S') on the smaller side, (B, N, N), in float64: S may be singular, and float32 would not tell its zeros.

    S' = (1 − ρ) S + (ρ / p) I has the eigenvalues λ' of those λ of S. With C = V λ Vᵀ it is
    r(0') I + X V g(λ) Vᵀ Xᵀ, where g(λ) = (r(λ') − r(0')) / λ.
    """
    count, channels = rows.shape[1:]
    wide, divisor = rows.double(), trace.double()[:, None, None]
    kept, added = (1 - intensity.double())[:, None, None], intensity.double() / channels
    eye = torch.eye(count, dtype=wide.dtype, device=rows.device)
    if count <= channels:
        quotient = function.quotient(add_identity(kept * second_moment(wide.mT) / divisor, added), root, algorithm)
        return eye if quotient is None else quotient
    values, vectors = torch.linalg.eigh(second_moment(wide) / divisor)
    values = values.clamp(min=0)
    points = torch.nn.functional.pad(values, (0, 1)) * kept.squeeze(-1) + added.unsqueeze(-1)  # the last is that of 0
    quotient = function.quotient(torch.diag_embed(points), root, algorithm)  # which may depend on all eigenvalues
    if quotient is None:
        return eye
    outputs = quotient.diagonal(dim1=1, dim2=2)
    slopes = torch.where(values > 0, (outputs[:, :-1] - outputs[:, -1:]) / values.clamp(min=1e-300), 0.0)
    rotated = wide @ vectors
    return outputs[:, -1, None, None] * eye + (rotated * slopes.unsqueeze(1)) @ rotated.mT / divisor

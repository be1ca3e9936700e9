"""The contributions of locations, pairs of locations and pairs of channels to a linear score of a pooled feature.

A second-order feature is linear in q(C) = b I + Σ_nm r(S)_nm x_n x_mᵀ, with rows x_n and their Gram matrix S. So with M
the adjoint of the vector stage applied to the weights of a score, the score is

    ⟨M, q(C)⟩ = b tr M + Σ_nm r(S)_nm x_nᵀ M x_m = b tr M + Σ_n (X r(C))_n · M x_n,

a sum over pairs of locations, and, since r(S) X = X r(C), over locations at the cost of a forward pass. Stages after
the vector that are affine (``project``) are followed exactly. Normalisations (``signed_sqrt``, ``l2``) multiply each
entry by a factor that depends on the input; the factors of this input are held fixed, which keeps the sum exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.pooling.functions.base import MatrixFunction, add_identity, split_trace
from polycov.pooling.functions.lyapunov import LyapunovSqrt
from polycov.pooling.functions.newton_schulz import NewtonSchulzSqrt
from polycov.pooling.moments import second_moment
from polycov.pooling.plan import Algorithm, at_least_float32
from polycov.pooling.pool import FirstOrderPool, Pool, SecondOrderPool
from polycov.pooling.tokens import as_tokens

Pullback = Callable[[Tensor], tuple[Tensor, Tensor]]  # weights of the output to weights of the input, and a constant


class Evidence(Protocol):
    """What the features of a batch are made of. Weights are (B, D), of a score ⟨weights, feature⟩."""

    def locations(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the contribution of each location, (B, N), and a constant, (B,); together they are the score."""

    def pairs(self, weights: Tensor) -> Tensor:
        """Returns the contribution of each pair of locations, (B, N, N), symmetric; rows add up to `locations`."""

    def channel_pairs(self, weights: Tensor) -> Tensor:
        """Returns the contribution of each pair of channels, (B, C, C), or of each channel on the diagonal."""


def collect_evidence(pool: Pool, features: Tensor, mask: Tensor | None = None) -> Evidence:
    """Computes what the pooled features of a batch are made of.

    Args:
        pool: that pools the features.
        features: maps (B, C, H, W) or tokens (B, N, C), as the pool takes them.
        mask: as the pool takes it.

    Raises:
        PolycovError: if the pool has no exact decomposition.
    """
    tokens, mask = as_tokens(features, mask)
    with torch.no_grad():
        if isinstance(pool, SecondOrderPool):
            return _second_order(pool, tokens, mask)
        if isinstance(pool, FirstOrderPool):
            shares = pool.pooling.shares(tokens.to(at_least_float32(tokens.dtype)), mask)
            return FirstOrderEvidence(shares, _through_posts(pool, shares.sum(1)))
    raise PolycovError(f"There is no exact explanation of {type(pool).__name__}.")


@dataclass(frozen=True)
class FirstOrderEvidence:
    """Features that are sums over locations.

    Attributes:
        shares: share of each location in each channel, (B, N, C).
        pull_back: weights through the stages after the pooling.
    """

    shares: Tensor
    pull_back: Pullback

    def locations(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions of locations, (B, N), and the constant, (B,)."""
        inner, constant = self.pull_back(weights.to(self.shares.dtype))
        return (self.shares @ inner.unsqueeze(-1)).squeeze(-1), constant

    def pairs(self, weights: Tensor) -> Tensor:
        """Contributions of pairs: a location only goes with itself."""
        return torch.diag_embed(self.locations(weights)[0])

    def channel_pairs(self, weights: Tensor) -> Tensor:
        """Contributions of channels, on the diagonal."""
        inner, _ = self.pull_back(weights.to(self.shares.dtype))
        return torch.diag_embed(self.shares.sum(1) * inner)


@dataclass(frozen=True)
class SecondOrderEvidence:
    """Features that are linear in a function of a second-order statistic.

    Attributes:
        pool: that pools.
        rows: X, (B, N, C).
        left: X r(C), scaled so that leftᵀ rows is the function without its constant, (B, N, C).
        matrix: q(C), (B, C, C).
        constant: b, (B,).
        gram_quotient: gives r(S), scaled like ``left``, (B, N, N).
        pull_back: weights through the stages after the vector.
    """

    pool: SecondOrderPool
    rows: Tensor
    left: Tensor
    matrix: Tensor
    constant: Tensor
    gram_quotient: Callable[[], Tensor]
    pull_back: Pullback

    def _adjoint(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """M of the weights, (B, C, C), and the constant of the stages after the vector, (B,)."""
        inner, constant = self.pull_back(weights.to(self.rows.dtype))
        with torch.enable_grad():  # the vector is linear, so its adjoint is its gradient anywhere
            matrix = torch.zeros_like(self.matrix).requires_grad_()
            (adjoint,) = torch.autograd.grad(self.pool.vector(matrix), matrix, inner)
        return 0.5 * (adjoint + adjoint.mT), constant

    def locations(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions of locations, (B, N), and the constant, (B,)."""
        adjoint, constant = self._adjoint(weights)
        contributions = (self.left * (self.rows @ adjoint)).sum(-1)
        return contributions, constant + self.constant * adjoint.diagonal(dim1=-2, dim2=-1).sum(-1)

    def pairs(self, weights: Tensor) -> Tensor:
        """Contributions of pairs of locations, (B, N, N)."""
        adjoint, _ = self._adjoint(weights)
        return self.gram_quotient() * (self.rows @ adjoint @ self.rows.mT)

    def channel_pairs(self, weights: Tensor) -> Tensor:
        """Contributions of pairs of channels, (B, C, C)."""
        return self._adjoint(weights)[0] * self.matrix


def _second_order(pool: SecondOrderPool, tokens: Tensor, mask: Tensor | None) -> SecondOrderEvidence:
    rows, scale = pool.moment(tokens.to(pool.plan(tokens, mask).dtype), mask)
    unit, trace, root = split_trace(second_moment(rows))
    root = root * scale
    function = _with_quotient(pool.function)
    algorithm: Algorithm = "eigenvalues" if function.products is None else "products"
    size = (root ** (2 * function.degree))[:, None, None]
    factor = size / trace[:, None, None]
    quotient = function.quotient(unit, root, algorithm)
    left = factor * (rows if quotient is None else rows @ quotient)
    offset = function.constant(root)
    constant = torch.zeros_like(root) if offset is None else offset * size.flatten()
    matrix = add_identity(left.mT @ rows, constant)

    def gram_quotient() -> Tensor:
        wide = rows.double()  # S may be singular, and float32 would not tell its zeros
        gram_quotient = function.quotient(second_moment(wide.mT) / trace.double()[:, None, None], root, algorithm)
        eye = torch.eye(rows.shape[1], dtype=wide.dtype, device=rows.device)
        return (factor * (eye if gram_quotient is None else gram_quotient)).to(rows.dtype)

    pull_back = _through_posts(pool, pool.vector(matrix))
    return SecondOrderEvidence(pool, rows, left, matrix, constant, gram_quotient, pull_back)


def _with_quotient(function: MatrixFunction) -> MatrixFunction:
    """The function, or one with the same values that also has a quotient."""
    return NewtonSchulzSqrt(function.iterations) if isinstance(function, LyapunovSqrt) else function


def _through_posts(pool: Pool, vector: Tensor) -> Pullback:
    """How weights of the feature become weights of the vector, for this vector."""
    steps: list[Pullback] = []
    for stage in pool.post:
        output = stage(vector)
        steps.append(_affine(stage, vector, output) if stage.degree is None else _elementwise(vector, output))
        vector = output

    def pull_back(weights: Tensor) -> tuple[Tensor, Tensor]:
        constant = weights.new_zeros(len(weights))
        for step in reversed(steps):
            weights, offset = step(weights)
            constant = constant + offset
        return weights, constant

    return pull_back


def _elementwise(vector: Tensor, output: Tensor) -> Pullback:
    """A normalisation, as the factors by which it multiplies this vector."""
    factors = torch.where(vector == 0, 0.0, output / torch.where(vector == 0, 1.0, vector))
    return lambda weights: (weights * factors, weights.new_zeros(len(weights)))


def _affine(stage: Callable[[Tensor], Tensor], vector: Tensor, output: Tensor) -> Pullback:
    """An affine stage, or the tangent of another at this vector."""

    def pull_back(weights: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = vector.detach().requires_grad_()
            (inner,) = torch.autograd.grad(stage(point), point, weights)
        return inner, (weights * output).sum(-1) - (inner * vector).sum(-1)

    return pull_back

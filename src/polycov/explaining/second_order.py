"""A linear score of a second-order feature as a sum over locations, pairs of locations and pairs of channels.

The feature is linear in q(C) = b I + Σ_nm r(S)_nm x_n x_mᵀ, with rows x_n and their Gram matrix S. So with M the
adjoint of the vector stage applied to the weights of a score, the score is

    ⟨M, q(C)⟩ = b tr M + Σ_nm r(S)_nm x_nᵀ M x_m = b tr M + Σ_n (X r(C))_n · M x_n,

a sum over pairs of locations, and, since r(S) X = X r(C), over locations. With C = V λ Vᵀ both come from one
eigendecomposition on the C × C side: r(C) = V r(λ) Vᵀ, and r(S) = r(0) I + X V g(λ) Vᵀ Xᵀ with
g(λ) = (r(λ) − r(0)) / λ. With fewer locations than channels, r(S) itself is the smaller matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from polycov.explaining.pull_back import through_posts
from polycov.pooling.functions import Identity
from polycov.pooling.functions.base import MatrixFunction, add_identity, split_trace
from polycov.pooling.functions.spectral import FLOOR
from polycov.pooling.moments import second_moment, with_roots
from polycov.pooling.plan import Algorithm, cheapest_route, choose_dtype
from polycov.pooling.pool import SecondOrderPool
from polycov.pooling.symmetric import Symmetric, add_to_diagonal, cut, join, joined_product, symmetric_product

BLOCK = 196  # locations; the inner size of these products is that of the channels, and larger blocks are faster


@dataclass
class SecondOrderEvidence:
    """Features that are linear in a function of a second-order statistic.

    Sums over locations are the same in any orthonormal basis V of the channels; in that of eigenvectors, r(C) is
    diagonal.

    Attributes:
        pool: pool that made the features.
        features: X, (B, N, C).
        rows: X V, (B, N, C).
        left: X r(C) V, scaled so that leftᵀ rows is the function without its constant, (B, N, C).
        basis: V, (B, C, C); None for the identity.
        constant: what of the function belongs to no location, (B, C, C): b I, and more if the statistic is shrunk.
        gram_quotient: gives r(S), scaled like ``left``; None if it is a multiple of I.
    """

    pool: SecondOrderPool
    features: Tensor
    rows: Tensor
    left: Tensor
    basis: Tensor | None
    constant: Tensor
    gram_quotient: Callable[[], Symmetric] | None
    _last: tuple[Tensor, Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    def from_basis(self, matrix: Tensor) -> Tensor:
        """Returns V Q Vᵀ of a matrix Q in the basis, (B, C, C)."""
        return matrix if self.basis is None else self.basis @ matrix @ self.basis.mT

    @cached_property
    def matrix(self) -> Tensor:
        """The function of the statistic, q(C), (B, C, C)."""
        if self.basis is None:
            return join(symmetric_product(self.left, self.rows)) + self.constant
        return (self.basis * (self.left * self.rows).sum(1, keepdim=True)) @ self.basis.mT + self.constant

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

    def _weighed(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The rows X M V, (B, N, C), and the constant, (B,); kept for the weights that were last asked for."""
        if self._last is None or self._last[0] is not weights:
            adjoint, constant = self._adjoint(weights)
            constant = constant + (self.constant * adjoint).sum((1, 2))
            turned = adjoint if self.basis is None else adjoint @ self.basis
            self._last = weights, self.features @ turned, constant
        return self._last[1:]

    def locations(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions of locations, (B, N), and the constant, (B,)."""
        weighed, constant = self._weighed(weights)
        return (self.left * weighed).sum(-1), constant

    def pairs(self, weights: Tensor) -> Tensor:
        """Contributions of pairs of locations, (B, N, N)."""
        if self.gram_quotient is None:
            return torch.diag_embed(self.locations(weights)[0])
        inner = symmetric_product(self._weighed(weights)[0].mT, self.rows.mT, BLOCK)
        return joined_product(self.gram_quotient(), inner)

    def channel_pairs(self, weights: Tensor) -> Tensor:
        """Contributions of pairs of channels, (B, C, C)."""
        return self._adjoint(weights)[0] * self.matrix


def second_order_evidence(pool: SecondOrderPool, tokens: Tensor, weights: Tensor | None) -> SecondOrderEvidence:
    """Returns what the second-order features of tokens, (B, N, C), with weights or a mask, (B, N), are made of."""
    function = pool.function.explained()
    centred, scale = pool.moment(tokens.to(choose_dtype(function, tokens.dtype)), weights)
    rows, shrunk = with_roots(centred, weights), "gram" not in pool.moment.routes
    if isinstance(function, Identity) and not shrunk:  # r = 1
        constant = rows.new_zeros(len(rows), rows.shape[-1], rows.shape[-1])
        return SecondOrderEvidence(pool, rows, rows, _scaled(rows, scale**2), None, constant, None)
    if not shrunk and cheapest_route(function, *rows.shape[1:]) == "gram":
        return _on_gram_side(pool, function, rows, scale)
    unit, trace, root = split_trace(second_moment(rows))
    intensity = pool.moment.intensity(unit, centred, weights)
    statistic = _Statistic(rows, unit, trace, root * scale, torch.zeros_like(root) if intensity is None else intensity)
    return _plain(pool, statistic) if isinstance(function, Identity) else _decomposed(pool, function, statistic)


def _on_gram_side(pool: SecondOrderPool, function: MatrixFunction, rows: Tensor, scale: Tensor) -> SecondOrderEvidence:
    """With r(S), (B, N, N), which is then smaller than r(C)."""
    unit, trace, root = split_trace(second_moment(rows.mT))
    root = root * scale
    size = root ** (2 * function.degree)
    factor = (size / trace)[:, None, None]
    constant = rows.new_zeros(len(rows), rows.shape[-1], rows.shape[-1])
    offset = function.constant(root)
    constant = constant if offset is None else add_identity(constant, offset * size)
    algorithm: Algorithm = "eigenvalues" if function.products is None else "products"
    quotient = factor * cast(Tensor, function.quotient(unit, root, algorithm))  # the identity does not come here
    return SecondOrderEvidence(pool, rows, rows, quotient @ rows, None, constant, lambda: cut(quotient, block=BLOCK))


@dataclass(frozen=True)
class _Statistic:
    """C' = (1 − ρ) C + (ρ tr C / p) I, which is C itself if it is not shrunk: ρ = 0.

    q(C') = b I + C' r(C') = [b I + (ρ tr C / p) r(C')] + (1 − ρ) Σ_n (X r(C'))_n x_nᵀ; what is in brackets has no
    location.

    Attributes:
        rows: X, (B, N, C).
        unit: A = XᵀX / its trace, (B, C, C).
        trace: of XᵀX, (B,).
        root: √(tr C), with the scale of the moment, (B,).
        intensity: ρ, (B,).
    """

    rows: Tensor
    unit: Tensor
    trace: Tensor
    root: Tensor
    intensity: Tensor


def _plain(pool: SecondOrderPool, of: _Statistic) -> SecondOrderEvidence:
    """q(C) = C: r = 1."""
    size = of.root**2
    constant = add_identity(torch.zeros_like(of.unit), size * of.intensity / of.unit.shape[-1])
    left = _scaled(of.rows, size * (1 - of.intensity) / of.trace)
    return SecondOrderEvidence(pool, of.rows, of.rows, left, None, constant, None)


def _decomposed(pool: SecondOrderPool, function: MatrixFunction, of: _Statistic) -> SecondOrderEvidence:
    """By the eigenvalues of A."""
    values, vectors, outputs = _decompose(function, of)
    size, quotients = of.root ** (2 * function.degree), outputs[:, :-1].to(of.rows.dtype)
    factor = size * (1 - of.intensity) / of.trace
    rows = of.rows @ vectors
    left = rows * (factor.unsqueeze(-1) * quotients).unsqueeze(1)
    constant, offset = torch.zeros_like(vectors), function.constant(of.root)
    if bool((of.intensity > 0).any()):
        part = (size * of.intensity / vectors.shape[-1]).unsqueeze(-1) * quotients
        constant = (vectors * part.unsqueeze(1)) @ vectors.mT
    constant = constant if offset is None else add_identity(constant, offset * size)
    return SecondOrderEvidence(
        pool, of.rows, rows, left, vectors, constant, lambda: _gram_quotient(rows, values, outputs, of.trace, factor)
    )


def _decompose(function: MatrixFunction, of: _Statistic) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues λ of A, (B, C), its eigenvectors, and r at λ' and at 0', (B, C + 1), in float64.

    The eigenvalues of (1 − ρ) A + (ρ / p) I are λ' = (1 − ρ) λ + ρ / p.
    """
    values, vectors = torch.linalg.eigh(of.unit)
    values = torch.where(values > FLOOR[values.dtype], values, 0.0).double()
    added = (of.intensity.double() / of.unit.shape[-1]).unsqueeze(-1)
    spectrum = (1 - of.intensity.double()).unsqueeze(-1) * values + added
    outputs = function.quotient_values(torch.cat([spectrum, added], -1), spectrum, of.root.double())
    return values, vectors, outputs


def _gram_quotient(rows: Tensor, values: Tensor, outputs: Tensor, trace: Tensor, factor: Tensor) -> Symmetric:
    """r(S'), (B, N, N), times the factor, (B,): S' = (1 − ρ) S + (ρ / p) I has the eigenvalues λ' and 0'."""
    outside = outputs[:, -1:]
    slopes = torch.where(values > 0, (outputs[:, :-1] - outside) / torch.where(values > 0, values, 1.0), 0.0)
    slopes = (slopes * (factor / trace).unsqueeze(-1)).to(rows.dtype)
    product = symmetric_product((rows * slopes.unsqueeze(1)).mT, rows.mT, BLOCK)
    return add_to_diagonal(product, factor * outside.squeeze(-1).to(factor.dtype))


def _scaled(matrix: Tensor, factor: Tensor) -> Tensor:
    """Matrices times one factor per sample, (B,)."""
    return matrix * factor[:, None, None]

"""Pools of cross moments: of one input, or of two."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from polycov.errors import PolycovError, positive_int
from polycov.pooling.batches import Batch, Repeatable
from polycov.pooling.cross import CrossMoment, split_norm
from polycov.pooling.functions.base import MatrixFunction
from polycov.pooling.plan import choose_dtype
from polycov.pooling.pool import Pool
from polycov.pooling.source import Channels
from polycov.pooling.spec import Spec, as_spec
from polycov.pooling.tokens import as_tokens
from polycov.pooling.vectors.base import Vector


class CrossPool(Pool):
    """Second-order pooling whose moment is a C₁ × C₂ matrix: ``self_cross(16, heads=4) | function | vector | post``.

    A function acts on the singular values; each head is pooled separately, and the vectors are joined.

    Args:
        channels: C, of the features; or those of each stage by its name, see `create_pool`.
        spec: spec of the pool.
        seed: determines the sketches, and the initial weights of a learned reduction.
        check_finite: raise `NonFiniteError` instead of returning NaN or Inf.

    Example:
        >>> pool = CrossPool(64, "self_cross(16, heads=4) | sqrt(5) | flatten")
        >>> pool(torch.rand(2, 64, 7, 7)).shape
        torch.Size([2, 1024])
    """

    first_order = False
    inputs = 1

    def __init__(self, channels: Channels, spec: str | Spec, *, seed: int = 0, check_finite: bool = True) -> None:
        spec = as_spec(spec)
        self._set_up(channels, None, spec, seed, check_finite)

    def _set_up(
        self, channels: Channels, sides: tuple[int, int] | None, spec: Spec, seed: int, check_finite: bool
    ) -> None:
        if not spec.cross or spec.inputs != self.inputs:
            raise PolycovError(f"'{spec}' is not a cross moment of {self.inputs} inputs: use create_pool.")
        super().__init__(channels, spec, seed, check_finite)
        moment, function, vector = spec.aggregation
        self.moment: CrossMoment = moment.build(channels=sides or self.width, seed=seed)
        self.function: MatrixFunction = function.build()
        if not self.function.has_rectangular:
            raise PolycovError(
                f"'{function}' is not defined for a cross moment, which is not symmetric. Use identity, sqrt(exact), "
                "sqrt(5) or another number of iterations up to 12, or power(p)."
            )
        self.vector: Vector = vector.build(channels=self.moment.sides, seed=seed)
        self._append(spec, self.vector.out_features * self.moment.heads)

    @property
    def needs_eigenvalues(self) -> bool:
        """Whether the matrix function can only be computed on eigenvalues; such a pool cannot be exported."""
        return self.function.products is None

    def aggregate(self, tokens: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None, float]:
        tokens, weights = self._pooled(tokens, weights)
        moment, scale = self.moment(tokens.to(choose_dtype(self.function, tokens.dtype)), weights)
        unit, norm = split_norm(moment)
        size = norm * scale
        vector = self.vector(self.function.rectangular(unit))
        if self.moment.heads == 1:
            return vector, size, self.function.degree
        heads = (-1, self.moment.heads)
        scales = scale.unflatten(0, heads)  # the largest is kept apart, so that later stages see numbers close to 1
        largest = scales.amax(1)
        share = (norm.unflatten(0, heads) * (scales / largest.unsqueeze(1)).to(norm.dtype)) ** self.function.degree
        return (vector.unflatten(0, heads) * share.unsqueeze(-1)).flatten(1), largest, self.function.degree


class TwoInputPool(CrossPool):
    """Second-order pooling of two inputs at the same locations: ``cross | function | vector``, and any ``| post``.

    Args:
        channels: C₁ and C₂, of the inputs.
        spec: spec of the pool.
        seed: determines the sketches.
        check_finite: raise `NonFiniteError` instead of returning NaN or Inf.

    Attributes:
        sides: C₁ and C₂; ``channels`` is their sum.

    Example:
        >>> pool = TwoInputPool((64, 32), "cross | identity | tensor_sketch(512) | signed_sqrt | l2")
        >>> pool(torch.rand(2, 64, 7, 7), torch.rand(2, 32, 7, 7)).shape
        torch.Size([2, 512])
        >>> pool(torch.rand(2, 64, 7, 7), torch.rand(2, 32)).shape  # one vector for all locations
        torch.Size([2, 512])
    """

    inputs = 2

    def __init__(
        self, channels: tuple[int, int], spec: str | Spec, *, seed: int = 0, check_finite: bool = True
    ) -> None:
        spec = as_spec(spec)
        if not isinstance(channels, tuple | list) or len(channels) != 2:
            raise PolycovError(
                f"Expected the channels of two inputs, such as (512, 300), for '{spec}', got {channels!r}."
            )
        sides = (positive_int("a pool", "channels", channels[0]), positive_int("a pool", "channels", channels[1]))
        self._set_up(sum(sides), sides, spec, seed, check_finite)
        self.sides = sides

    def forward(  # type: ignore[override]
        self, x: Tensor, y: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        """Pools two inputs.

        Args:
            x: maps (B, C₁, H, W), tokens (B, N, C₁), or one vector for all locations, (B, C₁).
            y: the same with C₂ channels, at the same locations.
            weights: optional, (B, N), or (B, H, W) for maps, as in `Pool.forward`.

        Returns:
            (B, D).

        Raises:
            PolycovError: if a shape or dtype is wrong, or the locations differ.
            NonFiniteError: if the features have NaN or Inf, or the result leaves the range of its dtype.
        """
        if y is None:
            raise PolycovError(f"Expected two inputs, pool(x, y), of {self.sides[0]} and {self.sides[1]} channels.")
        return super().forward(*self.join(x, y, weights))

    def join(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Returns both inputs as tokens side by side, (B, N, C₁ + C₂), and weights (B, N).

        Raises:
            PolycovError: if a shape is wrong, or the locations differ.
        """
        left, right = _as_tokens(x, self.sides[0], "first"), _as_tokens(y, self.sides[1], "second")
        single = 2 in (x.ndim, y.ndim)
        if single and self.moment.statistic == "covariance":
            raise PolycovError("The cross-covariance with a single vector for all locations is 0. Use cross.")
        if left.shape[0] != right.shape[0] or (not single and left.shape[1] != right.shape[1]):
            raise PolycovError(
                f"Expected the same samples and locations in both inputs, got {tuple(x.shape)} and {tuple(y.shape)}. "
                "Resize one of them, or pass one vector for all locations, (B, C)."
            )
        maps = x if x.ndim == 4 else y
        if weights is not None and maps.ndim == 4 and tuple(weights.shape) == (maps.shape[0], *maps.shape[2:]):
            weights = weights.flatten(1)
        count = max(left.shape[1], right.shape[1])
        return torch.cat([left.expand(-1, count, -1), right.expand(-1, count, -1)], -1), weights

    def fit(self, batches: Iterable[Batch]) -> "Pool":
        """Fits as `Pool.fit` does; batches are tuples of both inputs, and optionally weights and labels."""
        if iter(batches) is batches:
            return super().fit(self._joined(batches))
        return super().fit(Repeatable(lambda: self._joined(batches)))

    def _joined(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            if isinstance(batch, Tensor) or len(batch) < 2 or batch[0] is None or batch[1] is None:
                raise PolycovError("Expected batches to be tuples of both inputs and, optionally, weights and labels.")
            rest = batch[2:]
            weighted = bool(rest) and isinstance(rest[0], Tensor) and rest[0].ndim > 1
            tokens, weights = self.join(batch[0], batch[1], rest[0] if weighted else None)
            yield tokens, weights, *rest[weighted:]

    def __repr__(self) -> str:
        return super().__repr__().replace(f"({self.channels}, ", f"({self.sides}, ", 1)


def _as_tokens(x: Tensor, channels: int, name: str) -> Tensor:
    if isinstance(x, Tensor) and x.ndim == 2 and x.shape[1] == channels:
        x = x.unsqueeze(1)
    try:
        return as_tokens(x, None, channels)[0]
    except PolycovError as error:
        raise PolycovError(f"The {name} input: {error}") from None

"""Features side by side: several pools of the same local features, one after another in one vector."""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError
from polycov.pooling.batches import Batch
from polycov.pooling.cross_pool import CrossPool
from polycov.pooling.first_order_pool import FirstOrderPool
from polycov.pooling.plan import Route, check_route
from polycov.pooling.pool import Pool, SecondOrderPool
from polycov.pooling.source import Channels
from polycov.pooling.spec import Spec, as_spec


class SideBySidePool(Pool):
    """Features side by side: ``[spec, spec, …]``, followed by any number of ``| post``.

    A centred covariance forgets the mean, and an average everything else; side by side, they keep both. The inner
    product of two such features is the sum of the inner products of their parts, so parts of larger scale have more
    weight: see the stages ``balance``, fitted to data, and ``l2``, per sample.

    Args:
        channels: C, of the features; or those of each stage by its name, see `create_pool`.
        spec: of the pool.
        seed: determines everything random, alike in each part.
        route: of second-order parts; see `SecondOrderPool`.
        check_finite: raise `NonFiniteError` instead of returning NaN or Inf.

    Example:
        >>> pool = SideBySidePool(64, "[average | l2, covariance | sqrt(5) | triu | l2]")
        >>> pool(torch.rand(2, 64, 7, 7)).shape
        torch.Size([2, 2144])
    """

    def __init__(
        self, channels: Channels, spec: str | Spec, *, seed: int = 0, route: Route = "auto", check_finite: bool = True
    ) -> None:
        spec = as_spec(spec)
        if not spec.blocks:
            raise PolycovError(f"'{spec}' is a single feature: use create_pool.")
        super().__init__(channels, spec, seed, check_finite)
        self.first_order = spec.first_order
        self.route = check_route(route)
        self.blocks = nn.ModuleList(
            build_pool(channels, block, seed=seed, route=route, check_finite=check_finite) for block in spec.blocks
        )
        self._append(spec, *(block.out_features for block in self.parts))

    @property
    def parts(self) -> list[Pool]:
        """The pools of the parts."""
        return cast(list[Pool], list(self.blocks))

    @property
    def fittable(self) -> bool:
        """Whether a stage is fitted to data, after the list or in a part of it."""
        return super().fittable or any(part.fittable for part in self.parts)

    @property
    def is_fitted(self) -> bool:
        """Whether the pool can be applied: every stage that needs fitting is fitted."""
        return super().is_fitted and all(part.is_fitted for part in self.parts)

    @property
    def needs_training(self) -> bool:
        """Whether parameters of a part mean nothing before they are trained."""
        return any(part.needs_training for part in self.parts)

    @property
    def needs_eigenvalues(self) -> bool:
        """Whether the matrix function of a part can only be computed on eigenvalues."""
        return any(part.needs_eigenvalues for part in self.parts)

    def route_for(self, locations: int) -> str | None:
        """Returns the routes taken for this number of locations; None if all parts are first-order pooling."""
        routes = dict.fromkeys(filter(None, (part.route_for(locations) for part in self.parts)))
        return ", ".join(routes) or None

    @property
    def passes(self) -> int:
        """The number of passes over the batches that `fit` takes."""
        return super().passes + sum(part.passes for part in self.parts)

    def _fit(self, batches: Iterable[Batch]) -> None:
        for part in self.parts:
            part._fit(batches)
        super()._fit(batches)

    def aggregate(self, tokens: Tensor, weights: Tensor | None) -> tuple[Tensor, None, float]:
        features = [part.features(tokens, weights) for part in self.parts]
        dtype = torch.float64 if tokens.dtype == torch.float64 else torch.float32
        return torch.cat([feature.to(dtype) for feature in features], -1), None, 0.0


def build_pool(channels: Channels, spec: Spec, *, seed: int, route: Route, check_finite: bool) -> Pool:
    """Builds the pool of a spec."""
    if spec.blocks:
        return SideBySidePool(channels, spec, seed=seed, route=route, check_finite=check_finite)
    if spec.cross:
        if spec.inputs == 2:
            raise PolycovError(f"'{spec}' has two inputs, and cannot stand side by side with others.")
        if route not in ("auto", "covariance"):
            raise PolycovError(f"The route {route!r} does not exist for '{spec}'. Use 'auto'.")
        return CrossPool(channels, spec, seed=seed, check_finite=check_finite)
    if spec.first_order:
        return FirstOrderPool(channels, spec, seed=seed, check_finite=check_finite)
    return SecondOrderPool(channels, spec, seed=seed, route=route, check_finite=check_finite)

"""Pools: local features in, one vector per sample out."""

import math
from collections.abc import Iterable
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError, positive_int
from polycov.pooling.batches import Batch
from polycov.pooling.checks import check_finite, check_seed
from polycov.pooling.functions.base import MatrixFunction, add_identity, split_trace
from polycov.pooling.moments import Moment, second_moment, with_roots
from polycov.pooling.passes import check_batches, fit_stages, fitted_runs
from polycov.pooling.plan import HALF, Plan, Route, cheapest_route, check_route, make_plan
from polycov.pooling.post.base import Post
from polycov.pooling.shrinkage import shrink
from polycov.pooling.source import Channels, StageSource, as_groups
from polycov.pooling.spec import Spec, as_spec
from polycov.pooling.tokens import as_tokens, is_soft
from polycov.pooling.transforms import has_derivative, is_readable, needs_gradient
from polycov.pooling.vectors.base import Vector


class Pool(nn.Module):
    """Base class of all pools: checks shapes, controls precision, and applies the stages after the vector.

    Half-precision features are pooled in float32, and functions that need it are computed in float64. The result has
    the dtype of the features, or float32 under autocast, like torch's own float32 operations.

    Attributes:
        channels: C, of the features.
        groups: the channels of each stage of a network by its name, where features of several stand side by side.
        width: channels that are pooled: C, or those of one stage.
        out_features: D, of the result.
        spec: the canonical spec; a pool with the same spec and seed is the same pool.
        seed: determines everything random in it.
        check_finite: whether to raise `NonFiniteError` if the result has NaN or Inf. The check reads the result; it is
            skipped inside `torch.compile` and `torch.func.vmap`.
        first_order: whether this is first-order pooling.
        route: how second-order pools are computed; see `SecondOrderPool`.
        prefix_tokens: how many tokens at the front are class and register tokens, which only ``class_token`` pools.
    """

    first_order: bool
    route: Route = "auto"

    source: StageSource | None

    def __init__(self, channels: Channels, spec: Spec, seed: int, check_finite: bool) -> None:
        super().__init__()
        self.groups = as_groups(channels)
        self.channels = sum(self.groups.values()) or positive_int("a pool", "channels", channels)
        names = spec.source is not None or (bool(self.groups) and not spec.blocks)
        self.source = StageSource(self.groups, spec.sources[0]) if names else None
        self.width = self.channels if self.source is None else self.source.out_channels
        self.spec = str(spec)
        self.seed = check_seed(seed)
        self.check_finite = check_finite
        self.prefix_tokens = 0
        self.post = nn.ModuleList()
        self.out_features = 0

    def _append(self, spec: Spec, *blocks: int) -> None:
        """Adds the stages that follow a vector with blocks of these sizes."""
        for stage in spec.post:
            module: Post = stage.build(features=sum(blocks), blocks=blocks, seed=self.seed)
            self.post.append(module)
            blocks = (module.out_features,) if module.degree is None else blocks
        self.out_features = sum(blocks)

    @property
    def _stages(self) -> list[Post]:
        return cast(list[Post], list(self.post))

    @property
    def fittable(self) -> bool:
        """Whether a stage is fitted to data; see `fit`."""
        return any(stage.fittable for stage in self._stages)

    @property
    def is_fitted(self) -> bool:
        """Whether the pool can be applied: every stage that needs fitting is fitted."""
        return all(stage.is_fitted for stage in self._stages)

    @property
    def needs_eigenvalues(self) -> bool:
        """Whether the matrix function can only be computed on eigenvalues; such a pool cannot be exported."""
        return False

    @property
    def needs_training(self) -> bool:
        """Whether the pool has parameters that mean nothing before they are trained, such as queries."""
        return any(getattr(module, "needs_training", False) for module in self.modules() if module is not self)

    @property
    def stage_channels(self) -> int:
        """C, or of several stages that of the widest: what each was reduced to, unless it had fewer."""
        return max(self.groups.values(), default=self.channels)

    def route_for(self, locations: int) -> str | None:
        """Returns the route taken for this number of locations; None for first-order pooling."""
        return None

    def _pooled(self, tokens: Tensor, weights: Tensor | None, prefix: bool = False) -> tuple[Tensor, Tensor | None]:
        """The tokens to pool: those after the prefix tokens, or with ``prefix`` the prefix tokens."""
        tokens, count = self.select(tokens), self.prefix_tokens
        if not prefix and not count:
            return tokens, weights
        if not 0 < count < tokens.shape[1]:
            raise PolycovError(
                f"Expected tokens that begin with a class token, got prefix_tokens={count} of {tokens.shape[1]}: call "
                "create_pool(…, prefix_tokens=1) for tokens (B, N, C) that do, or use a backbone that has one."
            )
        part = slice(count) if prefix else slice(count, None)
        return tokens[:, part], None if weights is None else weights[:, part]

    def select(self, tokens: Tensor) -> Tensor:
        """Returns the channels of tokens (B, N, C) that are pooled."""
        return tokens if self.source is None else self.source(tokens)

    def aggregate(self, tokens: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None, float]:
        """Returns a vector (B, D), a scale (B,) or None, and a power: the feature is vector · scale^power."""
        raise NotImplementedError

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Pools features.

        Args:
            x: maps (B, C, H, W) or tokens (B, N, C), floating point.
            weights: optional, (B, N), or (B, H, W) for maps: how much each location counts, floating point, at least 0;
                only their ratios matter. Or a mask, boolean or integers 0 and 1: True or 1 where a token exists.

        Returns:
            (B, D).

        Raises:
            PolycovError: if a shape, a dtype or the weights are wrong.
            NonFiniteError: if the features have NaN or Inf, or the result leaves the range of its dtype.
        """
        result = self._pool(x, weights, len(self.post))
        if not (torch.is_autocast_enabled(x.device.type) and x.dtype in HALF):
            result = result.to(x.dtype)
        if self.check_finite and is_readable(result):
            check_finite(result, "The pooled features", result.dtype)
        return result

    def _pool(self, x: Tensor, weights: Tensor | None, stages: int) -> Tensor:
        """The feature after this many of the stages that follow the vector, in float32 or float64."""
        tokens, weights = as_tokens(x, weights, self.channels)
        # Switched off only if it is on, to keep exported graphs simple.
        autocast = torch.is_autocast_enabled(tokens.device.type)
        with torch.autocast(tokens.device.type, enabled=False) if autocast else nullcontext():
            result = self.features(tokens, weights, stages)
        return result if x.dtype == torch.float64 else result.float()

    def features(self, tokens: Tensor, weights: Tensor | None, stages: int | None = None) -> Tensor:
        """Returns the feature (B, D) of checked tokens and weights, after this many later stages; by default all."""
        vector, scale, power = self.aggregate(tokens, weights)
        for stage in self._stages[:stages]:
            if stage.degree is None:
                vector, power = _scaled(vector, scale, power), 0.0
            vector = stage(vector)
            power *= stage.degree or 0.0
        return _scaled(vector, scale, power)

    @torch.no_grad()
    def fit(self, batches: Iterable[Batch]) -> "Pool":
        """Fits stages such as `project` to training features; consecutive ones in one pass.

        Args:
            batches: features as `forward` takes them, or tuples that begin with them, as from a DataLoader. If the next
                item is boolean or integer with two or more dimensions, or floating point with the shape of the
                locations, it is the weights; integers of one dimension are labels.

        Returns:
            The pool.

        Raises:
            PolycovError: if there is nothing to fit, there are too few samples, or several passes are needed but the
                batches can be read only once.
        """
        if not self.fittable:
            raise PolycovError(f"There is nothing to fit in {self.spec!r}: it has no stage 'project' or 'balance'.")
        check_batches(batches, self.passes, self.spec)
        self._fit(batches)
        return self

    @property
    def passes(self) -> int:
        """The number of passes over the batches that `fit` takes."""
        return len(fitted_runs(self._stages))

    def _fit(self, batches: Iterable[Batch]) -> None:
        fit_stages(self._stages, batches, self._pool)

    def __repr__(self) -> str:
        route = "" if self.route == "auto" else f", route={self.route!r}"
        return f"{type(self).__name__}({self.groups or self.channels}, {self.spec!r}, seed={self.seed}{route})"


class SecondOrderPool(Pool):
    """Second-order pooling in three stages: moment, function, vector.

    Args:
        channels: C, of the features; or those of each stage by its name, see `create_pool`.
        spec: ``moment | function | vector``, followed by any number of ``| post``.
        seed: determines the sketches, alike on every device. The global random state is neither used nor changed.
        route: "covariance" (the C × C side), "gram" (the N × N side), "paper" (the sketch at every location, as
            published), or "auto" for the cheapest. All give the same feature.
        check_finite: raise `NonFiniteError` instead of returning NaN or Inf.

    Example:
        >>> pool = SecondOrderPool(64, "covariance | sqrt(5) | tensor_sketch(512)")
        >>> pool(torch.rand(2, 64, 7, 7)).shape
        torch.Size([2, 512])
        >>> pool
        SecondOrderPool(64, 'covariance | sqrt(5) | tensor_sketch(512)', seed=0)
    """

    first_order = False

    def __init__(
        self, channels: Channels, spec: str | Spec, *, seed: int = 0, route: Route = "auto", check_finite: bool = True
    ) -> None:
        spec = as_spec(spec)
        if spec.first_order or spec.cross:
            kind = "a cross moment" if spec.cross else "first-order pooling"
            raise PolycovError(f"'{spec}' is {kind}: use create_pool.")
        super().__init__(channels, spec, seed, check_finite)
        moment, function, vector = spec.aggregation
        self.moment: Moment = moment.build(channels=self.width)
        self.function: MatrixFunction = function.build()
        self.vector: Vector = vector.build(channels=self.moment.out_channels, seed=seed)
        self.routes = tuple(name for name in self.function.routes if name in self.moment.routes)
        self.route = check_route(route)
        if self.route not in ("auto", *self.routes) or (self.route == "paper" and not self.vector.has_factored):
            raise PolycovError(
                f"The route {route!r} does not exist for '{moment} | {function} | {vector}'. Use 'auto'."
            )
        self._append(spec, self.vector.out_features)

    @property
    def needs_eigenvalues(self) -> bool:
        """Whether the matrix function can only be computed on eigenvalues; such a pool cannot be exported."""
        return self.function.products is None

    def route_for(self, locations: int) -> str:
        """Returns the route taken for this number of locations."""
        if self.route != "auto" or "gram" not in self.routes:
            return "covariance" if self.route == "auto" else self.route
        return cheapest_route(self.function, locations, self.moment.out_channels)

    def plan(self, tokens: Tensor, weights: Tensor | None = None) -> Plan:
        """Returns how to compute the feature of tokens (B, N, C).

        If the derivative with respect to weights may be asked for, the route is "covariance": the C × C side is linear
        in the weights, and the N × N side has their roots.
        """
        differentiable = is_soft(weights) and has_derivative(weights)
        return make_plan(
            self.function,
            tokens.shape[1],
            self.moment.out_channels,
            dtype=tokens.dtype,
            device=tokens.device.type,
            gradient=differentiable
            or (torch.is_grad_enabled() and any(map(needs_gradient, (tokens, *self.moment.parameters())))),
            route="covariance" if differentiable or "gram" not in self.routes else self.route,
        )

    def aggregate(self, tokens: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None, float]:
        tokens, weights = self._pooled(tokens, weights)
        plan = self.plan(tokens, weights)
        rows, scale = self.moment(tokens.to(plan.dtype), weights)
        if plan.route == "covariance":
            unit, trace, root = split_trace(second_moment(rows, weights))
            intensity = self.moment.intensity(unit, rows, weights)
            unit = unit if intensity is None else shrink(unit, intensity)
        else:
            rows = with_roots(rows, weights)
            unit, trace, root = split_trace(second_moment(rows.mT))
        root = root * scale
        if plan.route == "covariance":
            vector = self.vector(self.function(unit, root, plan.algorithm))
        else:
            vector = self._by_gram(rows, unit, trace, root, plan)
        return vector, root, 2 * self.function.degree

    def _by_gram(self, rows: Tensor, gram: Tensor, trace: Tensor, root: Tensor, plan: Plan) -> Tensor:
        """The vector of b I + rowsᵀ r(S) rows / tr, for rows of any trace."""
        quotient = self.function.quotient(gram, root, plan.algorithm)
        factor = (1 / trace)[:, None, None]
        left = rows if quotient is None else quotient @ rows
        constant = self.function.constant(root)
        if plan.route == "gram":
            return self.vector(add_identity((left.mT @ rows) * factor, constant))
        vector = self.vector.factored(left * factor, rows)
        if constant is None:
            return vector
        eye = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device).unsqueeze(0)
        return vector + constant.unsqueeze(-1) * self.vector(eye)


def _scaled(vector: Tensor, scale: Tensor | None, power: float) -> Tensor:
    """Returns vector · scale^power, in steps: the power may leave the range of the dtype where the product does not."""
    steps = 0 if scale is None else math.ceil(power)
    for _ in range(steps):
        factor = scale if power == steps else scale ** (power / steps)  # type: ignore[operator]
        vector = vector * factor.unsqueeze(-1).to(vector.dtype)  # type: ignore[union-attr]
    return vector

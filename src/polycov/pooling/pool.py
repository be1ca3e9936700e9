"""Pools: local features in, one vector a sample out."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import NonFiniteError, PolycovError, positive_int
from polycov.pooling.first_order import FirstOrder
from polycov.pooling.functions.base import MatrixFunction, add_identity, split_trace
from polycov.pooling.moments import Moment, as_tokens, second_moment
from polycov.pooling.plan import Route, cheapest, check_route
from polycov.pooling.post.normalize import Post, SignedSqrt
from polycov.pooling.post.project import Project, StreamingPCA
from polycov.pooling.spec import Spec, parse_spec
from polycov.pooling.vectors.base import Vector

HALF = (torch.float16, torch.bfloat16)


class Pool(nn.Module):
    """What all pools share: shapes, precision, the stages after the vector, and the check of the result.

    Precision: half-precision features are pooled in float32, and functions of eigenvalues in float64 where they need
    it. The result has the dtype of the features, or float32 under autocast, as torch's own float32 operations have.

    Attributes:
        channels: C, of the features.
        out_features: D, of the result.
        spec: the canonical spec; a pool made of it with the same seed is the same pool.
        seed: of everything random in it.
        check_finite: raise `NonFiniteError` where the result has NaN or Inf. Costs a look at the result in eager
            mode; never done inside `torch.compile`.
    """

    def __init__(self, channels: int, spec: Spec, seed: int, check_finite: bool) -> None:
        super().__init__()
        self.channels = positive_int("a pool", "channels", channels)
        self.spec = str(spec)
        self.seed = _check_seed(seed)
        self.check_finite = check_finite
        self.post = nn.ModuleList()
        self.out_features = 0

    def _append(self, spec: Spec, features: int) -> None:
        for stage in spec.post:
            module: Post = stage.build(features=features, seed=self.seed)
            self.post.append(module)
            features = module.out_features
        self.out_features = features

    def working_dtype(self, tokens: Tensor, mask: Tensor | None = None) -> torch.dtype:
        """Returns the dtype to compute in."""
        return torch.float32 if tokens.dtype in HALF else tokens.dtype

    def aggregate(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None, float]:
        """Returns a vector (B, D), a scale (B,) or None, and a power: the feature is vector · scale^power."""
        raise NotImplementedError

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pools features.

        Args:
            x: maps (B, C, H, W) or tokens (B, N, C), floating point.
            mask: optional, boolean, (B, N) or for maps (B, H, W): True where a token exists.

        Returns:
            (B, D).

        Raises:
            PolycovError: on a wrong shape, dtype or mask.
            NonFiniteError: if the features have NaN or Inf, or the result leaves the range of its dtype.
        """
        result = self._pool(x, mask, len(self.post))
        if not (torch.is_autocast_enabled(x.device.type) and x.dtype in HALF):
            result = result.to(x.dtype)
        if self.check_finite and not torch.compiler.is_compiling():
            _check_finite(result, "The pooled features", result.dtype)
        return result

    def _pool(self, x: Tensor, mask: Tensor | None, stages: int) -> Tensor:
        """The feature after some of the stages behind the vector, at least in float32."""
        tokens, mask = as_tokens(x, mask)
        if tokens.shape[-1] != self.channels:
            raise PolycovError(
                f"Expected {self.channels} channels, got {tokens.shape[-1]} in features of shape {tuple(x.shape)}; "
                "maps are (B, C, H, W), tokens (B, N, C)."
            )
        # Without autocast there is nothing to switch off, and a graph that is exported stays plain.
        casting = torch.is_autocast_enabled(tokens.device.type)
        with torch.autocast(tokens.device.type, enabled=False) if casting else nullcontext():
            vector, scale, power = self.aggregate(tokens.to(self.working_dtype(tokens, mask)), mask)
            for i in range(stages):
                stage = self.post[i]
                degree: Any = stage.degree
                if degree is None:
                    vector, power = _scaled(vector, scale, power), 0.0
                vector = stage(vector)
                power *= degree or 0.0
            result = _scaled(vector, scale, power)
        return result if x.dtype == torch.float64 else result.float()

    @torch.no_grad()
    def fit(self, batches: Iterable[Tensor | Sequence[Tensor]]) -> "Pool":
        """Fits the stage `project` on training features, in one pass.

        Args:
            batches: of features as `forward` takes them; or of tuples that begin with them, as a DataLoader gives.
                If the second of a tuple is boolean and has two or more dimensions, it is their mask.

        Returns:
            The pool.

        Raises:
            PolycovError: if there is nothing to fit, or there are too few samples.
        """
        index = next((i for i, stage in enumerate(self.post) if isinstance(stage, Project)), None)
        if index is None:
            raise PolycovError(f"There is nothing to fit in {self.spec!r}: it has no stage 'project'.")
        if isinstance(batches, Tensor) or not isinstance(batches, Iterable):
            raise PolycovError(
                f"Expected batches of features, such as [x] or a DataLoader, got {type(batches).__name__}."
            )
        project: Any = self.post[index]
        pca = StreamingPCA()
        for batch in batches:
            x, mask = _features_and_mask(batch)
            pca.update(self._pool(x, mask, index))
        project.set_components(*pca.components(project.out_features))
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, {self.spec!r}, seed={self.seed})"


class SecondOrderPool(Pool):
    """Second-order pooling as three stages: moment, function, vector.

    Args:
        channels: C, of the features.
        spec: ``moment | function | vector``, with any number of ``| post`` behind.
        seed: of the sketches; the same on every device. The global random state is neither used nor changed.
        route: "covariance" (the C × C side), "gram" (the N × N side), "paper" (the sketches location by location, as
            printed), or "auto", the cheapest for each shape. All give the same feature.
        check_finite: raise `NonFiniteError` rather than return NaN or Inf.

    Example:
        >>> pool = SecondOrderPool(64, "covariance | sqrt(5) | tensor_sketch(512)")
        >>> pool(torch.rand(2, 64, 7, 7)).shape
        torch.Size([2, 512])
        >>> pool
        SecondOrderPool(64, 'covariance | sqrt(5) | tensor_sketch(512)', seed=0)
    """

    def __init__(
        self, channels: int, spec: str | Spec, *, seed: int = 0, route: Route = "auto", check_finite: bool = True
    ) -> None:
        spec = spec if isinstance(spec, Spec) else parse_spec(spec)
        if spec.first_order:
            raise PolycovError(f"'{spec}' is first-order pooling: use create_pool, or FirstOrderPool.")
        super().__init__(channels, spec, seed, check_finite)
        moment, function, vector = spec.aggregation
        self.moment: Moment = moment.build(channels=channels)
        self.function: MatrixFunction = function.build()
        self.vector: Vector = vector.build(channels=self.moment.out_channels, seed=seed)
        self.route: Route = check_route(route)
        if self.route not in ("auto", *self.function.routes) or (
            self.route == "paper" and not self.vector.has_factored
        ):
            raise PolycovError(f"The route {route!r} does not exist for '{function} | {vector}'. Use 'auto'.")
        self._append(spec, self.vector.out_features)

    def way(self, locations: int) -> str:
        """Returns the route that is taken for this number of locations."""
        return cheapest(self.function, locations, self.moment.out_channels) if self.route == "auto" else self.route

    def working_dtype(self, tokens: Tensor, mask: Tensor | None = None) -> torch.dtype:
        """Functions of eigenvalues take float64 unless the statistic has full rank with room to spare.

        The root of an eigenvalue that is 0 but for rounding is wrong by √eps, 3e-4 in float32. With N ≥ 2C locations,
        all of them there, the spectrum stays away from 0, and float32 does; unless a signed root follows, which makes
        much of small errors in its gradient.
        """
        locations, steep = tokens.shape[1], any(isinstance(stage, SignedSqrt) for stage in self.post)
        full = mask is None and not steep and locations >= 2 * self.moment.out_channels
        if self.function.exact and not (full and self.way(locations) == "covariance"):
            return torch.float64
        return super().working_dtype(tokens, mask)

    def aggregate(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None, float]:
        rows, scale = self.moment(tokens, mask)
        route = self.way(tokens.shape[1])
        unit, trace, root = split_trace(second_moment(rows if route == "covariance" else rows.mT))
        root = root * scale
        if self.function.exact and self.check_finite and not torch.compiler.is_compiling():
            _check_finite(root.unsqueeze(-1), "The features", root.dtype)  # before an eigendecomposition fails on them
        if route == "covariance":
            vector = self.vector(self.function(unit, root))
        else:
            vector = self._by_gram(rows, unit, trace, root, factored=route == "paper")
        return vector, root, 2 * self.function.degree

    def _by_gram(self, rows: Tensor, gram: Tensor, trace: Tensor, root: Tensor, factored: bool) -> Tensor:
        """The vector of b I + rowsᵀ r(S) rows / tr, for rows of any trace."""
        quotient = self.function.quotient(gram, root)
        share = (1 / trace)[:, None, None]
        left = rows if quotient is None else quotient @ rows
        constant = self.function.constant(root)
        if not factored:
            return self.vector(add_identity((left.mT @ rows) * share, constant))
        left = left * share
        vector = self.vector.factored(left, rows)
        if constant is None:
            return vector
        eye = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device).unsqueeze(0)
        return vector + constant.unsqueeze(-1) * self.vector(eye)

    def __repr__(self) -> str:
        return super().__repr__()[:-1] + ("" if self.route == "auto" else f", route={self.route!r}") + ")"


class FirstOrderPool(Pool):
    """First-order pooling: ``average``, ``max`` or ``gem(3)``, with any number of ``| post`` behind.

    Args:
        channels: C, of the features.
        spec: of the pool.
        seed: of what is random behind it.
        check_finite: raise `NonFiniteError` rather than return NaN or Inf.

    Example:
        >>> FirstOrderPool(64, "average | l2")(torch.rand(2, 64, 7, 7)).shape
        torch.Size([2, 64])
    """

    def __init__(self, channels: int, spec: str | Spec, *, seed: int = 0, check_finite: bool = True) -> None:
        spec = spec if isinstance(spec, Spec) else parse_spec(spec)
        if not spec.first_order:
            raise PolycovError(f"'{spec}' is second-order pooling: use create_pool, or SecondOrderPool.")
        super().__init__(channels, spec, seed, check_finite)
        self.pooling: FirstOrder = spec.aggregation[0].build(channels=channels)
        self._append(spec, self.pooling.out_features)

    def aggregate(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, None, float]:
        return self.pooling(tokens, mask), None, 0.0


def _scaled(vector: Tensor, scale: Tensor | None, power: float) -> Tensor:
    return vector if scale is None or not power else vector * (scale**power).unsqueeze(-1)


def _features_and_mask(batch: Tensor | Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    if isinstance(batch, Tensor):
        return batch, None
    if not isinstance(batch, tuple | list) or not batch:
        raise PolycovError(
            f"Expected batches that are tensors, or tuples that begin with one, got {type(batch).__name__}."
        )
    second = batch[1] if len(batch) > 1 else None
    masked = isinstance(second, Tensor) and second.dtype == torch.bool and second.ndim > 1
    return batch[0], second if masked else None


def _check_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
        raise PolycovError(f"Expected seed to be an integer of 64 bits, got {seed!r}.")
    return seed


def _check_finite(x: Tensor, what: str, dtype: torch.dtype) -> None:
    finite = torch.isfinite(x)
    if not bool(finite.all()):
        samples = (~finite.all(-1)).nonzero().flatten().tolist()
        raise NonFiniteError(
            f"{what} of {len(samples)} of {len(x)} samples (numbers {samples[:10]}) have NaN or Inf. Either the layers "
            f"before made them, or the features are too large for {dtype}: scale them down, or use a wider dtype. "
            "check_finite=False lets them through."
        )

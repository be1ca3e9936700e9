"""The pool of a first-order spec."""

from torch import Tensor

from polycov.errors import PolycovError
from polycov.pooling.first_order import FirstOrder
from polycov.pooling.plan import at_least_float32
from polycov.pooling.pool import Pool
from polycov.pooling.source import Channels
from polycov.pooling.spec import Spec, as_spec


class FirstOrderPool(Pool):
    """First-order pooling: ``average``, ``max``, ``gem(3)`` or attention, followed by any number of ``| post``.

    Args:
        channels: C, of the features; or those of each stage by its name, see `create_pool`.
        spec: spec of the pool.
        seed: determines everything random in later stages.
        check_finite: raise `NonFiniteError` instead of returning NaN or Inf.

    Example:
        >>> FirstOrderPool(64, "average | l2")(torch.rand(2, 64, 7, 7)).shape
        torch.Size([2, 64])
    """

    first_order = True

    def __init__(self, channels: Channels, spec: str | Spec, *, seed: int = 0, check_finite: bool = True) -> None:
        spec = as_spec(spec)
        if not spec.first_order:
            raise PolycovError(f"'{spec}' is second-order pooling: use create_pool or SecondOrderPool.")
        super().__init__(channels, spec, seed, check_finite)
        self.pooling: FirstOrder = spec.aggregation[0].build(channels=self.width, seed=seed)
        self._append(spec, self.pooling.out_features)

    def aggregate(self, tokens: Tensor, weights: Tensor | None) -> tuple[Tensor, None, float]:
        tokens, weights = self._pooled(tokens, weights, self.pooling.reads_prefix)
        return self.pooling(tokens.to(at_least_float32(tokens.dtype)), weights), None, 0.0

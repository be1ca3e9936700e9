"""Shrinkage of a covariance towards a multiple of the identity, for samples with few locations.

The shrunk covariance (1 − ρ) C + ρ (tr C / p) I of p channels has the trace of C. So shrinkage is a map of A = C / tr C
alone, A ↦ (1 − ρ) A + (ρ / p) I, and everything that follows is a function of the result. Its N × N counterpart has no
identity to add to, hence only the route "covariance" exists.
"""

import torch
from torch import Tensor

from polycov.errors import PolycovError, known
from polycov.pooling.functions.base import add_identity
from polycov.pooling.tokens import count_tokens, is_soft, weigh

Shrinkage = float | str | None
ESTIMATORS = ("oas", "ledoit_wolf")


def check_shrinkage(shrinkage: Shrinkage) -> Shrinkage:
    """Returns ``shrinkage`` if it is None, an estimator, or a number from 0 to 1.

    Raises:
        PolycovError: if it is anything else.
    """
    if isinstance(shrinkage, str):
        if shrinkage not in ESTIMATORS:
            choices = known(shrinkage, ESTIMATORS)
            raise PolycovError(f"Unknown shrinkage {shrinkage!r} of covariance. {choices} Or a number from 0 to 1.")
        return shrinkage
    if shrinkage is None:
        return None
    if isinstance(shrinkage, bool) or not isinstance(shrinkage, int | float) or not 0 <= shrinkage <= 1:
        raise PolycovError(f"Expected shrinkage of covariance to be oas, ledoit_wolf or 0 to 1, got {shrinkage!r}.")
    return float(shrinkage)


def effective_count(tokens: Tensor, weights: Tensor | None) -> Tensor:
    """Returns the number of tokens of each sample, (B,); with floating-point weights (Σ w)² / Σ w².

    Example:
        >>> effective_count(torch.zeros(1, 3, 2), torch.tensor([[1.0, 1.0, 0.0]]))
        tensor([2.])
    """
    total = count_tokens(tokens, weights)
    if not is_soft(weights):
        return total
    return total.square() / count_tokens(tokens, weights.to(tokens.dtype).square())


def shrinkage_intensity(shrinkage: float | str, unit: Tensor, rows: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns ρ, (B,), between 0 and 1.

    With D = ‖A − I/p‖² (so ‖A‖² = D + 1/p) and n tokens, it is

    - ``oas``: (D + 1/p + 1) / ((n + 1) D), the oracle approximating shrinkage (Chen, Wiesel, Eldar, Hero, 2010);
    - ``ledoit_wolf``: (m − ‖A‖²) / (n D), where m is the mean of ‖x‖⁴ over the centred tokens, divided by (tr C)²
      (Ledoit, Wolf, 2004);

    or 1 if that is more. These are scikit-learn's ``OAS`` and ``LedoitWolf``. With weights, n is the effective number
    of tokens and m the weighted mean.

    Args:
        shrinkage: the estimator, or ρ itself.
        unit: A, (B, C, C).
        rows: centred tokens at any scale, (B, N, C); zeros where a mask hides them.
        weights: of the tokens, (B, N).
    """
    if isinstance(shrinkage, float):
        return unit.new_full(unit.shape[:1], shrinkage)
    part = 1 / unit.shape[-1]
    distance = add_identity(unit, torch.full_like(unit[:, 0, 0], -part)).square().sum((1, 2))
    count = effective_count(rows, weights)
    spherical = distance == 0
    divisor = torch.where(spherical, 1.0, distance)
    if shrinkage == "oas":
        return torch.where(spherical, 1.0, (distance + part + 1) / ((count + 1) * divisor)).clamp(max=1.0)
    squares = rows.square().sum(-1, keepdim=True)  # ‖x‖², (B, N, 1)
    squares = squares.clamp(max=1e18)  # tokens that count are close to 1; one of weight 0 may be of any size
    trace = weigh(squares, weights).sum((1, 2))
    fourth = weigh(squares.square(), weights).sum((1, 2)) * count_tokens(rows, weights)
    excess = fourth / torch.where(trace == 0, 1.0, trace).square() - (distance + part)
    return torch.where(spherical, 0.0, excess / (count * divisor)).clamp(0.0, 1.0)


def shrink(unit: Tensor, intensity: Tensor) -> Tensor:
    """Returns (1 − ρ) A + (ρ / p) I for A, (B, C, C), and ρ, (B,).

    Example:
        >>> shrink(torch.tensor([[[0.75, 0.25], [0.25, 0.25]]]), torch.tensor([0.5]))
        tensor([[[0.6250, 0.1250],
                 [0.1250, 0.3750]]])
    """
    return add_identity(unit * (1 - intensity)[:, None, None], intensity / unit.shape[-1])

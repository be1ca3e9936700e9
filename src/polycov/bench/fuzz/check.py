"""Runs cases, and says what is wrong with them."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polycov.bench.fuzz.cases import Case, make_case
from polycov.bench.fuzz.reference import reference
from polycov.errors import NonFiniteError, PolycovError

ROUNDING = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 3e-7, torch.float64: 1e-15}

NEAR = 1e-3  # of the range of a dtype: sums in the gradient of larger features may leave it


class Outcome(NamedTuple):
    """What a case gave.

    Attributes:
        number: of the case.
        spec: of its pool.
        error: the largest error of a sample, as a share of its tolerance.
        problem: what is wrong, or None.
        description: of the case.
    """

    number: int
    spec: str
    error: float
    problem: str | None
    description: str


def run_case(number: int) -> Outcome:
    """Runs one case: values must match the reference, gradients be finite, and errors be PolycovErrors."""
    case = make_case(number)
    try:
        error, problem = _check(case)
    except Exception as exception:  # anything but a PolycovError is a bug
        error, problem = math.inf, f"{type(exception).__name__}: {exception}"
    return Outcome(number, case.pool.spec, error, problem, case.description)


def run_cases(first: int, count: int) -> Iterator[Outcome]:
    """Runs cases one after the other."""
    for number in range(first, first + count):
        yield run_case(number)


def summary(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Returns a row for each spec, the largest errors first."""
    rows = []
    for spec in dict.fromkeys(outcome.spec for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.spec == spec]
        errors = [outcome.error for outcome in own if not outcome.problem]
        failed = len(own) - len(errors)
        rows.append({"spec": spec, "cases": len(own), "largest_error": max(errors, default=0.0), "failed": failed})
    return sorted(rows, key=lambda row: -row["largest_error"])


def _call(case: Case, x: Tensor) -> Tensor:
    two = getattr(case.pool, "inputs", 1) == 2
    dim = 1 if x.ndim == 4 else 2
    inputs = x.split(case.pool.sides, dim) if two else (x,)
    weights = case.weights
    if weights is not None and x.ndim == 4:
        weights = weights.reshape(len(x), *x.shape[2:])
    result: Tensor = case.pool(*inputs, weights=weights)
    return result


def _check(case: Case) -> tuple[float, str | None]:
    x = case.x.detach().requires_grad_(case.gradient)
    expected = [_expected(case, i) if i != case.bad else None for i in range(len(x))]
    case.pool.check_finite = True
    if case.bad is not None:
        try:
            _call(case, x)
            return math.inf, "NaN was not reported"
        except NonFiniteError as error:
            if f"{case.bad}" not in str(error):
                return math.inf, f"the wrong sample was named: {error}"
        case.pool.check_finite = False
    try:
        y = _call(case, x)
    except PolycovError as error:
        return (0.0, None) if _overflows(expected, x.dtype) else (math.inf, f"refused: {error}")
    if tuple(y.shape) != (len(x), case.pool.out_features) or y.dtype != x.dtype:
        return math.inf, f"shape {tuple(y.shape)}, {y.dtype}"
    worst, problem = _compare(case, y.detach(), expected)
    if problem is None and case.gradient and not _overflows(expected, x.dtype, NEAR):
        problem = _gradient(case, x, y)
    return worst, problem


def _expected(case: Case, sample: int) -> tuple[np.ndarray[Any, Any], float]:
    weights = None if case.weights is None else case.weights[sample].double().numpy()
    with np.errstate(all="ignore"):
        return reference(case.pool, case.tokens[sample], weights, case.x.dtype == torch.float64)


def _overflows(expected: list[Any], dtype: torch.dtype, share: float = 0.99) -> bool:
    """Whether a feature is out of the range of the dtype, or a share of it."""
    limit = share * torch.finfo(dtype).max
    return any(e is not None and not bool((np.abs(e[0]) < limit).all()) for e in expected)


def _compare(case: Case, y: Tensor, expected: list[Any]) -> tuple[float, str | None]:
    worst = 0.0
    smallest = torch.finfo(y.dtype).tiny * math.sqrt(max(y.shape[1], 1))
    for i, pair in enumerate(expected):
        if pair is None or _overflows([pair], y.dtype):
            continue
        value, error = pair
        size, distance = (float(np.linalg.norm(v)) for v in (value, y[i].double().numpy() - value))
        if not math.isfinite(error):
            continue
        bound = (error + ROUNDING[y.dtype]) * size + smallest
        share = distance / bound
        if not share <= 1:
            size = max(size, 1e-300)
            return share, f"sample {i}: error {distance / size:.1e}, tolerance {bound / size:.1e}"
        worst = max(worst, share)
    return worst, None


def _gradient(case: Case, x: Tensor, y: Tensor) -> str | None:
    """Whether the gradient of the good samples is finite, unless it is out of the range of the dtype."""
    keep = [i for i in range(len(x)) if i != case.bad]
    direction = torch.linspace(-1, 1, y.shape[1], dtype=y.dtype)
    (grad,) = torch.autograd.grad((y[keep] * direction).sum(), x)
    if bool(grad[keep].isfinite().all()):
        return None
    wide = case.x.detach().double().requires_grad_()
    total = (_call(case, wide)[keep] * direction.double()).sum()
    (exact,) = torch.autograd.grad(total, wide)
    largest = float(exact[keep].abs().max())
    return None if largest > 1e-3 * torch.finfo(x.dtype).max else f"the gradient is not finite; it is {largest:.1e}"

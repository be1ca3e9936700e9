"""Checks of seeds and of samples."""

import math

import torch
from torch import Tensor

from polycov.errors import NonFiniteError, PolycovError


def check_seed(seed: object) -> int:
    """Returns ``seed`` if it is a 64-bit integer.

    Raises:
        PolycovError: if it is anything else.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
        raise PolycovError(f"Expected seed to be a 64-bit integer, got {seed!r}.")
    return seed


def marked(samples: Tensor) -> list[int]:
    """Returns the indices of the samples that are True.

    One after the other, because torch 2.6 cannot make a list of a tensor inside ``torch.func``.

    Example:
        >>> marked(torch.tensor([False, True, True]))
        [1, 2]
    """
    return [i for i, mark in enumerate(samples) if mark]


def check_finite(x: Tensor, what: str, dtype: torch.dtype) -> None:
    """Checks that a tensor (B, D) has neither NaN nor Inf.

    Args:
        x: the tensor.
        what: its name, for the error message.
        dtype: what it was computed in, for the error message.

    Raises:
        NonFiniteError: if it has.
    """
    if math.isfinite(x.sum().item()):  # several times faster; it may overflow although all entries are finite
        return
    finite = torch.isfinite(x)
    if not bool(finite.all()):
        samples = marked(~finite.all(-1))
        raise NonFiniteError(
            f"{what} of {len(samples)} of {len(x)} samples have NaN or Inf (samples {samples[:10]}). Either an earlier "
            f"layer produced them, or the features are too large for {dtype}: scale them down or use a wider dtype. "
            "check_finite=False disables this check."
        )

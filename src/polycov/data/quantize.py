"""Features in fewer bytes: float16, or int8 with a scale for each sample."""

from typing import Literal, get_args

import torch
from torch import Tensor

from polycov.errors import NonFiniteError, PolycovError, known

Stored = Literal["float32", "float16", "int8"]


def store(features: Tensor, dtype: Stored) -> tuple[Tensor, Tensor | None]:
    """Returns features as they are kept: the numbers, and for int8 the scale of each sample.

    As int8, x becomes round(x / s) with s = max |x| / 127: each entry is wrong by at most s / 2.

    Args:
        features: (B, D), finite.
        dtype: "float32", "float16" (half the bytes) or "int8" (a quarter, and four bytes a sample).

    Returns:
        (B, D) of the dtype, and (B,) float32 or None.

    Raises:
        PolycovError: on an unknown dtype, or another shape.
        NonFiniteError: if a feature is too large for float16, or is not finite.

    Example:
        >>> store(torch.tensor([[-1.0, 0.0, 2.0]]), "int8")
        (tensor([[-64,   0, 127]], dtype=torch.int8), tensor([0.0157]))
    """
    if dtype not in get_args(Stored):
        raise PolycovError(f"Unknown dtype of stored features {dtype!r}. {known(str(dtype), get_args(Stored))}")
    if not isinstance(features, Tensor) or features.ndim != 2 or 0 in features.shape:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise PolycovError(f"Expected features as a tensor of shape (B, D), got {got}.")
    kept, scale = features.to(getattr(torch, dtype) if dtype != "int8" else torch.float32), None
    if not bool(kept.isfinite().all()):
        raise NonFiniteError(f"Expected finite features that {dtype} can hold, got {float(features.abs().max()):g}.")
    if dtype == "int8":
        scale = kept.abs().amax(1) / 127
        kept = (kept / torch.where(scale == 0, 1.0, scale).unsqueeze(1)).round().clamp(-127, 127).to(torch.int8)
    return kept, scale


def restore(kept: Tensor, scale: Tensor | None = None) -> Tensor:
    """Returns what `store` kept, in float32.

    Example:
        >>> restore(*store(torch.tensor([[-1.0, 0.0, 2.0]]), "int8"))
        tensor([[-1.0079,  0.0000,  2.0000]])
    """
    return kept.float() if scale is None else kept.float() * scale.unsqueeze(1)

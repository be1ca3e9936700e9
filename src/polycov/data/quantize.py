"""Features in fewer bytes: float16, or int8 with one scale per sample."""

from typing import Literal, get_args

import torch
from torch import Tensor

from polycov.errors import NonFiniteError, PolycovError, known

FeatureDtype = Literal["float32", "float16", "int8"]


def quantize(features: Tensor, dtype: FeatureDtype) -> tuple[Tensor, Tensor | None]:
    """Returns features in another dtype: the codes, and for int8 the scale of each sample.

    As int8, x becomes round(x / s) with s = max |x| / 127: the error of each entry is at most s / 2.

    Args:
        features: (B, D), finite.
        dtype: "float32", "float16" (half the bytes) or "int8" (a quarter, plus four bytes per sample).

    Returns:
        codes (B, D) of the dtype, and scale (B,) float32 or None.

    Raises:
        PolycovError: on an unknown dtype or a wrong shape.
        NonFiniteError: if a feature is not finite, or too large for float16.

    Example:
        >>> quantize(torch.tensor([[-1.0, 0.0, 2.0]]), "int8")
        (tensor([[-64,   0, 127]], dtype=torch.int8), tensor([0.0157]))
    """
    if dtype not in get_args(FeatureDtype):
        raise PolycovError(f"Unknown feature dtype {dtype!r}. {known(str(dtype), get_args(FeatureDtype))}")
    if not isinstance(features, Tensor) or features.ndim != 2 or 0 in features.shape:
        given = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise PolycovError(f"Expected features as a tensor of shape (B, D), got {given}.")
    codes, scale = features.to(getattr(torch, dtype) if dtype != "int8" else torch.float32), None
    if not bool(codes.isfinite().all()):
        raise NonFiniteError(f"Expected finite features in the range of {dtype}, got {float(features.abs().max()):g}.")
    if dtype == "int8":
        scale = codes.abs().amax(1) / 127
        codes = (codes / torch.where(scale == 0, 1.0, scale).unsqueeze(1)).round().clamp(-127, 127).to(torch.int8)
    return codes, scale


def dequantize(codes: Tensor, scale: Tensor | None = None) -> Tensor:
    """Returns quantised features in float32.

    Example:
        >>> dequantize(*quantize(torch.tensor([[-1.0, 0.0, 2.0]]), "int8"))
        tensor([[-1.0079,  0.0000,  2.0000]])
    """
    return codes.float() if scale is None else codes.float() * scale.unsqueeze(1)

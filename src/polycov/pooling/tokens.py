"""Local features as tokens (B, N, C), and their weights (B, N): how much each counts, or a mask of which exist."""

from typing import TypeGuard

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.pooling.checks import marked
from polycov.pooling.transforms import is_readable

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MASKS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

# Other layouts: the number of dimensions, the dimension of the channels, the name, and the call that converts them.
LAYOUTS = (
    (4, 3, "channels-last maps (B, H, W, C)", "x.permute(0, 3, 1, 2)"),
    (3, 1, "channels-first tokens (B, C, N)", "x.mT"),
    (3, 0, "a single map (C, H, W)", "x.unsqueeze(0)"),
    (2, 1, "the tokens of a single sample (N, C)", "x.unsqueeze(0)"),
    (2, 1, "features that are already pooled (B, C)", "those before pooling"),
    (2, 0, "the channels-first tokens of a single sample (C, N)", "x.mT.unsqueeze(0)"),
    (5, 1, "volumes or clips (B, C, T, H, W)", "x.flatten(3)"),
    (5, 4, "channels-last volumes or clips (B, T, H, W, C)", "x.flatten(1, 3)"),
)


def maps_to_tokens(x: Tensor) -> Tensor:
    """Returns maps (B, C, H, W) as tokens (B, H·W, C); tokens (B, N, C) are returned unchanged. Checks nothing.

    Example:
        >>> maps_to_tokens(torch.zeros(2, 256, 7, 7)).shape
        torch.Size([2, 49, 256])
    """
    return x.flatten(2).mT if x.ndim == 4 else x


def as_tokens(x: Tensor, weights: Tensor | None = None, channels: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Checks features and their weights, and returns them as tokens (B, N, C) and weights (B, N).

    Args:
        x: maps (B, C, H, W) or tokens (B, N, C), floating point.
        weights: of the locations, (B, N), or (B, H, W) for maps: floating point, at least 0; or a mask, boolean or
            integers, True or 1 where a token exists and False or 0 elsewhere.
        channels: C, if known.

    Returns:
        The tokens, and None, a boolean mask, or floating-point weights, the largest of each sample between ½ and 1.

    Raises:
        PolycovError: if a shape or dtype is wrong, there is no location, a weight is negative, NaN or Inf, or all
            weights of a sample are 0.

    Example:
        >>> as_tokens(torch.zeros(2, 256, 7, 7))[0].shape
        torch.Size([2, 49, 256])
    """
    if not isinstance(x, Tensor):
        raise PolycovError(f"Expected features as a torch.Tensor, got {type(x).__name__}. Use torch.as_tensor(x).")
    if x.ndim not in (3, 4):
        raise PolycovError(
            f"Expected features of shape (B, C, H, W) or (B, N, C), got {tuple(x.shape)}.{_layout_hint(x, channels)}"
        )
    if x.dtype not in FLOATS:
        raise PolycovError(f"Expected floating-point features, got {x.dtype}. Convert them with x.float().")
    tokens = maps_to_tokens(x)
    if channels is not None and tokens.shape[-1] != channels:
        raise PolycovError(
            f"Expected {channels} channels, got {tokens.shape[-1]} in features of shape {tuple(x.shape)}; "
            f"maps are (B, C, H, W), tokens (B, N, C).{_layout_hint(x, channels)}"
        )
    if tokens.shape[1] == 0:
        raise PolycovError(f"Expected at least one location, got features of shape {tuple(x.shape)}.")
    return tokens, None if weights is None else _checked_weights(weights, x, tokens)


def _layout_hint(x: Tensor, channels: int | None) -> str:
    """A sentence that says how to convert features that have their channels in another dimension."""
    fixes = [f"{name}: use {call}" for ndim, dim, name, call in LAYOUTS if x.ndim == ndim and x.shape[dim] == channels]
    return f" It looks like {'; or like '.join(fixes)}." if fixes else ""


def _checked_weights(weights: Tensor, x: Tensor, tokens: Tensor) -> Tensor:
    shapes = [tuple(tokens.shape[:2])] + ([(x.shape[0], *x.shape[2:])] if x.ndim == 4 else [])
    if not isinstance(weights, Tensor):
        raise _weights_error(shapes, type(weights).__name__)
    if weights.dtype not in (*MASKS, *FLOATS) or tuple(weights.shape) not in shapes:
        raise _weights_error(shapes, f"{weights.dtype} of shape {tuple(weights.shape)}")
    weights = weights.flatten(1)
    if weights.is_floating_point():
        return _unit_weights(weights)
    if is_readable(weights):
        if bool(((weights != 0) & (weights != 1)).any()):
            raise _weights_error(
                shapes, f"integers from {int(weights.min())} to {int(weights.max())}; use weights.float()"
            )
        if bool((empty := ~weights.bool().any(1)).any()):
            raise PolycovError(
                f"The mask hides every token of samples {_first(empty)}. Each sample needs at least one."
            )
    return weights.bool()


def _unit_weights(weights: Tensor) -> Tensor:
    """Checks floating-point weights, and multiplies those of a sample by a power of two that makes them at most 1."""
    if is_readable(weights):
        wrong = ~(weights >= 0).all(1) | ~weights.isfinite().all(1)
        if bool(wrong.any()):
            raise PolycovError(
                f"Expected weights of at least 0, got negative, NaN or infinite ones in samples {_first(wrong)}."
            )
        if bool((empty := ~(weights > 0).any(1)).any()):
            raise PolycovError(f"All weights of samples {_first(empty)} are 0. Each sample needs one that is positive.")
    weights = weights.float() if weights.dtype in (torch.float16, torch.bfloat16) else weights
    return weights * power_of_two(weights.detach().amax(1, keepdim=True))


def _first(samples: Tensor) -> list[int]:
    """The indices of the first samples that are True."""
    return marked(samples)[:10]


def _weights_error(shapes: list[tuple[int, ...]], actual: str) -> PolycovError:
    return PolycovError(
        f"Expected weights of shape {' or '.join(map(str, shapes))}: floating point, at least 0; or a boolean mask, "
        f"True where a token exists, or integers 1 and 0 in its place; got {actual}."
    )


def power_of_two(largest: Tensor, limit: int | None = None) -> Tensor:
    """Returns the power of two that brings a number between ½ and 1; multiplying by it causes no rounding.

    Its exponent is at most the limit, or minus that; default: 1000 in float64, 120 otherwise.

    Example:
        >>> power_of_two(torch.tensor([0.3, 20.0, 0.0]))
        tensor([2.0000, 0.0312, 0.5000])
    """
    limit = limit or (1000 if largest.dtype == torch.float64 else 120)
    below = torch.where(largest > 0, largest, 1.0).log2().floor()
    return torch.exp2((-1 - below).clamp(-limit, limit))


def is_soft(weights: Tensor | None) -> TypeGuard[Tensor]:
    """Returns whether weights are floating point, not a mask."""
    return weights is not None and weights.is_floating_point()


def counts(weights: Tensor) -> Tensor:
    """Returns which tokens count at all, (B, N): those that a mask shows, or whose weight is positive."""
    return weights > 0 if is_soft(weights) else weights.bool()


def hide(tokens: Tensor, weights: Tensor | None) -> Tensor:
    """Returns tokens (B, N, C) with zeros where the mask (B, N) is False, even in place of NaN.

    A token of weight 0 is kept, because the result has a derivative with respect to its weight; with NaN or Inf it
    counts as a token of zeros.

    Example:
        >>> hide(torch.tensor([[[1.0], [torch.nan]]]), torch.tensor([[True, False]]))
        tensor([[[1.],
                 [0.]]])
    """
    if weights is None:
        return tokens
    if is_soft(weights):
        return torch.where(((weights > 0) | tokens.isfinite().all(-1)).unsqueeze(-1), tokens, 0.0)
    return torch.where(weights.bool().unsqueeze(-1), tokens, 0.0)


def weigh(tokens: Tensor, weights: Tensor | None) -> Tensor:
    """Returns tokens (B, N, C) times their weights, if these are floating point.

    Example:
        >>> weigh(torch.tensor([[[2.0], [3.0]]]), torch.tensor([[1.0, 0.5]])).flatten()
        tensor([2.0000, 1.5000])
    """
    return tokens * weights.to(tokens.dtype).unsqueeze(-1) if is_soft(weights) else tokens


def count_tokens(tokens: Tensor, weights: Tensor | None) -> Tensor:
    """Returns the number of tokens that exist per sample, or the sum of their weights, (B,), in their dtype.

    Example:
        >>> count_tokens(torch.zeros(1, 2, 3), torch.tensor([[True, False]]))
        tensor([1.])
    """
    if weights is None:
        return tokens.new_full((tokens.shape[0],), float(tokens.shape[1]))
    if is_soft(weights):
        total = weights.to(tokens.dtype).sum(1)
        return torch.where(total > 0, total, 1.0)
    return weights.sum(1).clamp(min=1).to(tokens.dtype)

"""Local features as tokens (B, N, C), and the mask (B, N) that marks which tokens exist."""

import torch
from torch import Tensor

from polycov.errors import PolycovError
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


def as_tokens(x: Tensor, mask: Tensor | None = None, channels: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Checks features and their mask, and returns them as tokens (B, N, C) and a boolean mask (B, N).

    Args:
        x: maps (B, C, H, W) or tokens (B, N, C), floating point.
        mask: boolean, True where a token exists, or integer, 1 where a token exists and 0 elsewhere; (B, N), or
            (B, H, W) for maps.
        channels: C, if known.

    Raises:
        PolycovError: if a shape or dtype is wrong, there is no location, or the mask hides every token of a sample.

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
    return tokens, None if mask is None else _checked_mask(mask, x, tokens)


def _layout_hint(x: Tensor, channels: int | None) -> str:
    """A sentence that says how to convert features that have their channels in another dimension."""
    fixes = [f"{name}: use {call}" for ndim, dim, name, call in LAYOUTS if x.ndim == ndim and x.shape[dim] == channels]
    return f" It looks like {'; or like '.join(fixes)}." if fixes else ""


def _checked_mask(mask: Tensor, x: Tensor, tokens: Tensor) -> Tensor:
    shapes = [tuple(tokens.shape[:2])] + ([(x.shape[0], *x.shape[2:])] if x.ndim == 4 else [])
    if not isinstance(mask, Tensor):
        raise _mask_error(shapes, type(mask).__name__)
    if mask.dtype not in MASKS or tuple(mask.shape) not in shapes:
        raise _mask_error(shapes, f"{mask.dtype} of shape {tuple(mask.shape)}")
    mask = mask.flatten(1)
    if mask.dtype != torch.bool:
        if is_readable(mask) and bool(((mask != 0) & (mask != 1)).any()):
            raise _mask_error(shapes, f"integers from {int(mask.min())} to {int(mask.max())}")
        mask = mask.bool()
    if is_readable(mask) and not bool(mask.any(1).all()):
        empty = (~mask.any(1)).nonzero().flatten().tolist()
        raise PolycovError(f"The mask hides every token of samples {empty[:10]}. Each sample needs at least one.")
    return mask


def _mask_error(shapes: list[tuple[int, ...]], actual: str) -> PolycovError:
    return PolycovError(
        f"Expected a boolean mask of shape {' or '.join(map(str, shapes))}, True where a token exists, or integers 1 "
        f"and 0 in its place, got {actual}."
    )


def hide(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Returns tokens (B, N, C) with zeros where the mask (B, N) is False, even in place of NaN.

    Example:
        >>> hide(torch.tensor([[[1.0], [torch.nan]]]), torch.tensor([[True, False]]))
        tensor([[[1.],
                 [0.]]])
    """
    return tokens if mask is None else torch.where(mask.bool().unsqueeze(-1), tokens, 0.0)


def count_tokens(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the number of tokens that exist per sample, (B,), in the dtype of the tokens.

    Example:
        >>> count_tokens(torch.zeros(1, 2, 3), torch.tensor([[True, False]]))
        tensor([1.])
    """
    if mask is None:
        return tokens.new_full((tokens.shape[0],), float(tokens.shape[1]))
    return mask.sum(1).clamp(min=1).to(tokens.dtype)

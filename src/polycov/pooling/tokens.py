"""Local features as tokens (B, N, C), and the mask (B, N) that marks which tokens exist."""

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.pooling.transforms import is_readable

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def maps_to_tokens(x: Tensor) -> Tensor:
    """Returns maps (B, C, H, W) as tokens (B, H·W, C); tokens (B, N, C) are returned unchanged. Checks nothing.

    Example:
        >>> maps_to_tokens(torch.zeros(2, 256, 7, 7)).shape
        torch.Size([2, 49, 256])
    """
    return x.flatten(2).mT if x.ndim == 4 else x


def as_tokens(x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Checks features and their mask, and returns them as tokens (B, N, C) and a mask (B, N).

    Args:
        x: maps (B, C, H, W) or tokens (B, N, C), floating point.
        mask: boolean, True where a token exists; (B, N), or (B, H, W) for maps.

    Raises:
        PolycovError: if a shape or dtype is wrong, there is no location, or the mask hides every token of a sample.

    Example:
        >>> as_tokens(torch.zeros(2, 256, 7, 7))[0].shape
        torch.Size([2, 49, 256])
    """
    if not isinstance(x, Tensor):
        raise PolycovError(f"Expected features as a torch.Tensor, got {type(x).__name__}. Use torch.as_tensor(x).")
    if x.ndim not in (3, 4):
        raise PolycovError(f"Expected features of shape (B, C, H, W) or (B, N, C), got {tuple(x.shape)}.")
    if x.dtype not in FLOATS:
        raise PolycovError(f"Expected floating-point features, got {x.dtype}. Convert them with x.float().")
    tokens = maps_to_tokens(x)
    if tokens.shape[1] == 0:
        raise PolycovError(f"Expected at least one location, got features of shape {tuple(x.shape)}.")
    return tokens, None if mask is None else _checked_mask(mask, x, tokens)


def _checked_mask(mask: Tensor, x: Tensor, tokens: Tensor) -> Tensor:
    shapes = [tuple(tokens.shape[:2])] + ([(x.shape[0], *x.shape[2:])] if x.ndim == 4 else [])
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or tuple(mask.shape) not in shapes:
        actual = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        expected = " or ".join(map(str, shapes))
        raise PolycovError(f"Expected a boolean mask of shape {expected}, True where a token exists, got {actual}.")
    mask = mask.flatten(1)
    if is_readable(mask) and not bool(mask.any(1).all()):
        empty = (~mask.any(1)).nonzero().flatten().tolist()
        raise PolycovError(f"The mask hides every token of samples {empty[:10]}. Each sample needs at least one.")
    return mask


def hide(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Returns tokens (B, N, C) with zeros where the mask (B, N) is False, even in place of NaN.

    Example:
        >>> hide(torch.tensor([[[1.0], [torch.nan]]]), torch.tensor([[True, False]]))
        tensor([[[1.],
                 [0.]]])
    """
    return tokens if mask is None else torch.where(mask.unsqueeze(-1), tokens, 0.0)


def count_tokens(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the number of tokens that exist per sample, (B,), in the dtype of the tokens.

    Example:
        >>> count_tokens(torch.zeros(1, 2, 3), torch.tensor([[True, False]]))
        tensor([1.])
    """
    if mask is None:
        return tokens.new_full((tokens.shape[0],), float(tokens.shape[1]))
    return mask.sum(1).clamp(min=1).to(tokens.dtype)

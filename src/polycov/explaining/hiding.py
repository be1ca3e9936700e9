"""Hiding regions of an image: cells of the local feature map, replaced by a blurred image or by the mean colour."""

from typing import Literal, get_args

import torch
from torch import Tensor

from polycov.errors import PolycovError, known

Hide = Literal["blur", "mean"]
BLUR = 1 / 20  # standard deviation of the blur, over the side of the image


def replacement(image: Tensor, hide: Hide = "blur") -> Tensor:
    """Returns what hidden regions of an image show, (3, H, W): the image blurred, or its mean colour.

    The blur is Gaussian, with a standard deviation of a twentieth of each side; weights outside the image are dropped.

    Raises:
        PolycovError: if ``hide`` is neither "blur" nor "mean".

    Example:
        >>> replacement(torch.tensor([[[0.0, 1.0]]]), "mean")
        tensor([[[0.5000, 0.5000]]])
    """
    if hide not in get_args(Hide):
        raise PolycovError(f"Unknown way to hide regions {hide!r}. {known(str(hide), get_args(Hide))}")
    if hide == "mean":
        return image.mean((1, 2), keepdim=True).expand_as(image)
    height, width = image.shape[1:]
    return _blur_matrix(height).to(image) @ image @ _blur_matrix(width).to(image).mT


def _blur_matrix(side: int) -> Tensor:
    position = torch.arange(side, dtype=torch.float64)
    weights = torch.exp(-0.5 * ((position[:, None] - position) / (BLUR * side)) ** 2)
    return weights / weights.sum(1, keepdim=True)


def hide_cells(image: Tensor, hidden: Tensor, instead: Tensor) -> Tensor:
    """Replaces cells of an image, once per mask.

    Args:
        image: (3, H, W).
        hidden: masks of cells, boolean (S, height, width); cells divide the image evenly.
        instead: what hidden cells show, (3, H, W).

    Returns:
        (S, 3, H, W).

    Example:
        >>> hide_cells(torch.zeros(1, 1, 4), torch.tensor([[[True, False]]]), torch.ones(1, 1, 4))
        tensor([[[[1., 1., 0., 0.]]]])
    """
    masks = torch.nn.functional.interpolate(hidden[:, None].float(), size=image.shape[1:], mode="nearest")
    return torch.where(masks > 0.5, instead, image)

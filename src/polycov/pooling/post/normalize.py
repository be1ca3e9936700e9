"""Elementwise signed powers and l2 normalisation."""

import torch
from torch import Tensor

from polycov.errors import finite_number
from polycov.pooling.post.base import Post
from polycov.pooling.registry import register

SMALLEST = 1e-12


def _by_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x divided by its largest magnitude, a constant to autograd; and that magnitude, or 1 if it is 0."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    largest = torch.where(largest == 0, 1.0, largest)
    return x / largest, largest


def signed_sqrt(x: Tensor) -> Tensor:
    """Returns sign(x) √|x|.

    The derivative at 0 is infinite. So below 1e-12 of the largest magnitude in a row, a straight line through 0 that
    meets the root there replaces it.

    Example:
        >>> signed_sqrt(torch.tensor([4.0, -9.0, 0.0]))
        tensor([ 2., -3.,  0.])
    """
    x, largest = _by_largest(x)
    return x * x.abs().clamp(min=SMALLEST).rsqrt() * largest.sqrt()


def signed_power(x: Tensor, exponent: float) -> Tensor:
    """Returns ``sign(x) |x|^p`` for p > 0, elementwise power normalisation.

    Where p < 1, the straight line of `signed_sqrt` replaces it near 0.

    Reference: Perronnin, Sánchez, Mensink, "Improving the Fisher Kernel for Large-Scale Image Classification",
    ECCV 2010.

    Example:
        >>> signed_power(torch.tensor([8.0, -27.0, 0.0]), 1 / 3)
        tensor([ 2., -3.,  0.])
    """
    x, largest = _by_largest(x)
    return x * x.abs().clamp(min=SMALLEST) ** (exponent - 1) * largest**exponent


def l2(x: Tensor) -> Tensor:
    """Returns x / ‖x‖ over the last dimension. Zero stays zero, with the gradient of x itself.

    Example:
        >>> l2(torch.tensor([[3e-20, 4e-20], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    x, _ = _by_largest(x)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(norm == 0, 1.0, norm)


@register("post", "signed_sqrt")
class SignedSqrt(Post):
    """sign(x) √|x| of every entry: see `polycov.functional.signed_sqrt`."""

    degree = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return signed_sqrt(x)


@register("post", "signed_power", "signed_power(0.7)")
class SignedPower(Post):
    """sign(x) |x|^p of every entry: see `polycov.functional.signed_power`.

    Args:
        exponent: p > 0.
    """

    def __init__(self, features: int, exponent: float) -> None:
        super().__init__(features)
        self.degree = finite_number("signed_power", "exponent", exponent, 0, 100)

    def forward(self, x: Tensor) -> Tensor:
        return signed_power(x, self.degree or 1.0)


@register("post", "l2")
class L2(Post):
    """Division by the Euclidean norm: see `polycov.functional.l2`."""

    degree = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return l2(x)

"""What may follow the vector: elementwise signed square root and l2 normalisation."""

import torch
from torch import Tensor, nn

from polycov.pooling.registry import register

SMALLEST = 1e-12


def _by_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x divided by its largest entry in magnitude, a constant to autograd; and that entry, or 1 if it is 0."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    largest = torch.where(largest == 0, 1.0, largest)
    return x / largest, largest


def signed_sqrt(x: Tensor) -> Tensor:
    """Returns sign(x) √|x|.

    The derivative at 0 is infinite, so below 1e-12 of the largest entry of a row the root is replaced by the straight
    line that meets it there.

    Example:
        >>> signed_sqrt(torch.tensor([4.0, -9.0, 0.0]))
        tensor([ 2., -3.,  0.])
    """
    x, largest = _by_largest(x)
    return x * x.abs().clamp(min=SMALLEST).rsqrt() * largest.sqrt()


def l2(x: Tensor) -> Tensor:
    """Returns x / ‖x‖ over the last dimension; zero stays zero, with gradient as of x itself.

    Example:
        >>> l2(torch.tensor([[3e-20, 4e-20], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    x, _ = _by_largest(x)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(norm == 0, 1.0, norm)


class Post(nn.Module):
    """Base of what follows a vector.

    Attributes:
        degree: p, if scaling the input by a scales the output by a^p; then the pool carries the scale past it.
            None if the input must come at its true scale.
        out_features: the size of the output.
    """

    degree: float | None = None

    def __init__(self, features: int) -> None:
        super().__init__()
        self.out_features = features


@register("post", "signed_sqrt")
class SignedSqrt(Post):
    """sign(x) √|x|, entry by entry: see `polycov.functional.signed_sqrt`."""

    degree = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return signed_sqrt(x)


@register("post", "l2")
class L2(Post):
    """Division by the Euclidean norm: see `polycov.functional.l2`."""

    degree = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return l2(x)

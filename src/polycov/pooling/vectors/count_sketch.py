"""The count sketch of a matrix, with buckets of equal size."""

import torch
from torch import Tensor

from polycov.errors import positive_int
from polycov.pooling.registry import register
from polycov.pooling.vectors.base import MOST_DIMENSIONS, Channels
from polycov.pooling.vectors.buckets import BucketMap, bucket_sum, random_signs
from polycov.pooling.vectors.triangle import triu, upper_triangle


def count_sketch(matrix: Tensor, order: Tensor, signs: Tensor, dim: int) -> Tensor:
    """Returns the upper triangle, dealt like cards into D buckets of equal size, with random signs.

    ⟨φ(P), φ(Q)⟩ is an unbiased estimate of ⟨P, Q⟩. Because the buckets are equally full, two of the m = C(C+1)/2
    entries share one with probability (m/D − 1)/(m − 1), less than 1/D: the variance is about 1 − D/m of that of a
    tensor sketch, and 0 for D ≥ m.

    Args:
        matrix: symmetric, (B, C, C).
        order: a permutation of the C(C+1)/2 entries of the triangle; entry ``order[i]`` goes into bucket i mod D.
        signs: ±1 for each entry of the triangle.
        dim: D.

    Returns:
        (B, D).

    Example:
        >>> count_sketch(torch.tensor([[[1.0, 0.0], [0.0, 3.0]]]), torch.tensor([2, 0, 1]), torch.ones(3), 2)
        tensor([[3., 1.]])
    """
    return bucket_sum(triu(matrix) * signs.to(matrix.dtype), deal(order, dim), dim)


def deal(order: Tensor, dim: int) -> Tensor:
    """Returns the bucket of each entry when the entries, in this order, are dealt into ``dim`` buckets in turn.

    Example:
        >>> deal(torch.tensor([2, 0, 1]), 2)
        tensor([1, 0, 0])
    """
    bucket = torch.empty_like(order)
    bucket[order] = torch.arange(len(order), device=order.device) % dim
    return bucket


@register("vector", "count_sketch", "count_sketch(12)", "count_sketch(64)", "count_sketch(64, least=1)")
class CountSketch(BucketMap):
    """A count sketch with ``dim`` dimensions: see `polycov.functional.count_sketch`.

    Of a matrix that is not symmetric, it deals all entries instead of the triangle.

    Args:
        channels: C, the size of symmetric matrices, or (C₁, C₂) of any.
        dim: D.
        least: if given, there are only as many dimensions as distinct entries where these are fewer than D, but at
            least this many; all that are left out would be 0.
        seed: determines the order and the signs.
    """

    is_sketch = True
    order: Tensor
    signs: Tensor

    def __init__(self, channels: Channels, dim: int, *, least: int | None = None, seed: int = 0) -> None:
        super().__init__(channels, positive_int("count_sketch", "dim", dim, MOST_DIMENSIONS))
        if least is not None:
            least = positive_int("count_sketch", "least", least)
            self.out_features = min(dim, max(self.size, least))
            self.dim.fill_(self.out_features)
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("order", torch.randperm(self.size, generator=generator, device="cpu"))
        self.register_buffer("signs", random_signs(self.size, generator=generator))
        self.build()
        self.to(torch.get_default_device())

    def _entries(self, device: torch.device) -> Tensor:
        """The indices of the entries that are dealt, in a flattened matrix."""
        return upper_triangle(self.sides[0], device)[0] if self.symmetric else torch.arange(self.size, device=device)

    def assign_buckets(self, device: torch.device) -> tuple[Tensor, Tensor]:
        entries = self._entries(device)
        bucket = torch.full((self.sides[0] * self.sides[1],), self.out_features, device=device)
        bucket[entries] = deal(self.order, self.out_features)
        sign = torch.zeros_like(bucket)
        sign[entries] = self.signs.to(sign.dtype)
        return bucket, sign

"""Linear maps of a matrix in which each entry goes, with a weight, into one bucket.

The upper triangle, the tensor sketch and the count sketch are all such maps and differ only in who goes where.
"""

from typing import Any

import torch
from torch import Tensor, nn

from polycov.vectors.base import Vector


def random_signs(*shape: int, generator: torch.Generator) -> Tensor:
    """Returns independent ±1 of the given shape, on the CPU, so that a seed means the same for every device."""
    return torch.randint(2, shape, generator=generator, device="cpu") * 2.0 - 1.0


def bucket_table(bucket: Tensor, size: int) -> Tensor:
    """Returns the table (L, size) whose column j lists the entries with ``bucket == j``, filled up with the number M.

    Args:
        bucket: (M,), the bucket of each entry; −1 for none.
        size: the number of buckets.

    Example:
        >>> bucket_table(torch.tensor([1, 0, 1, -1]), 3)
        tensor([[1, 0, 4],
                [4, 2, 4]])
    """
    entries = (bucket >= 0).nonzero().flatten()
    order = entries[bucket[entries].argsort(stable=True)]
    counts = torch.bincount(bucket[entries], minlength=size)
    rank = torch.arange(len(order), device=bucket.device) - (counts.cumsum(0) - counts)[bucket[order]]
    length = int(counts.max()) if len(order) else 1
    table = torch.full((length, size), len(bucket), dtype=torch.long, device=bucket.device)
    table[rank, bucket[order]] = order
    return table


class _BucketSum(torch.autograd.Function):
    """Sums entries (B, M) into buckets (B, D). Gathered through a table, not scattered: the order of the sum is fixed.

    Backward is a gather, and the backward of that is this sum again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, bucket: Tensor) -> Tensor:
        ctx.save_for_backward(table, bucket)
        padded = nn.functional.pad(x, (0, 1))  # entry number M is the zero that fills the table
        picked = padded.index_select(1, table.flatten())
        return picked.view(x.shape[0], *table.shape).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _BucketGather.apply(grad, *ctx.saved_tensors), None, None


class _BucketGather(torch.autograd.Function):
    """Hands each entry the value of its bucket, (B, D) → (B, M)."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, table: Tensor, bucket: Tensor) -> Tensor:
        ctx.save_for_backward(table, bucket)
        return nn.functional.pad(y, (0, 1)).index_select(1, bucket % (y.shape[1] + 1))  # −1 finds the padding, 0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _BucketSum.apply(grad, *ctx.saved_tensors), None, None


def bucket_sum(x: Tensor, bucket: Tensor, size: int, table: Tensor | None = None) -> Tensor:
    """Returns v with v_j = Σ x_m over the entries m with ``bucket[m] == j``.

    Deterministic on every device, and twice differentiable.

    Args:
        x: (B, M).
        bucket: (M,) integers in [0, size), or −1 for an entry to leave out.
        size: D, the number of buckets.
        table: `bucket_table(bucket, size)`, if it is at hand.

    Returns:
        (B, D).

    Example:
        >>> bucket_sum(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1, 0, 1]), 2)
        tensor([[2., 4.]])
    """
    table = bucket_table(bucket, size) if table is None else table
    result: Tensor = _BucketSum.apply(x, table, bucket)
    return result


class BucketMap(Vector):
    """Base of the vectors that put each entry of a matrix into one bucket.

    A subclass says where by `draw`, from its persistent buffers; the tables made of it follow the device and are made
    anew after `load_state_dict`.
    """

    bucket: Tensor
    table: Tensor

    def draw(self) -> Tensor:
        """Returns the bucket of each entry of a flattened matrix, (C²,)."""
        raise NotImplementedError

    def weight(self, dtype: torch.dtype) -> Tensor:
        """Returns the weight of each entry, (C²,)."""
        raise NotImplementedError

    def build(self) -> None:
        """Makes the tables; to be called when the buffers stand."""
        bucket = self.draw()
        self.register_buffer("bucket", bucket, persistent=False)
        self.register_buffer("table", bucket_table(bucket, self.out_features), persistent=False)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        device = self.bucket.device
        self.build()
        self.to(device)

    def forward(self, matrix: Tensor) -> Tensor:
        x = matrix.flatten(1) * self.weight(matrix.dtype)  # (B, C²)
        return bucket_sum(x, self.bucket, self.out_features, self.table)

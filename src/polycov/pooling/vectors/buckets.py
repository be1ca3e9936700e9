"""Linear maps that add each entry of a matrix, with a weight, to one bucket.

The upper triangle, the tensor sketch and the count sketch are such maps; they differ only in the bucket of each entry.
"""

from typing import Any

import torch
from torch import Tensor, nn

from polycov.pooling.transforms import SampleFunction, call
from polycov.pooling.vectors.base import Channels, Vector


def random_signs(*shape: int, generator: torch.Generator) -> Tensor:
    """Returns independent ±1 of the given shape, drawn on the CPU, so that a seed gives the same on every device."""
    return torch.randint(2, shape, generator=generator, device="cpu") * 2.0 - 1.0


def bucket_table(bucket: Tensor, size: int) -> Tensor:
    """Returns the table (L, size) whose column j lists the entries with ``bucket == j``, padded with M.

    Args:
        bucket: (M,), the bucket of each entry, from 0 to size − 1; ``size`` for an entry without a bucket.
        size: the number of buckets.

    Example:
        >>> bucket_table(torch.tensor([1, 0, 1, 3]), 3)
        tensor([[1, 0, 4],
                [4, 2, 4]])
    """
    order = bucket.argsort(stable=True)[: int((bucket < size).sum())]
    counts = torch.bincount(bucket, minlength=size + 1)[:size]
    rank = torch.arange(len(order), device=bucket.device) - (counts.cumsum(0) - counts)[bucket[order]]
    table = torch.full((max(int(counts.max()), 1), size), len(bucket), dtype=torch.long, device=bucket.device)
    table[rank, bucket[order]] = order
    return table


class _BucketSum(SampleFunction):
    """Sums entries (B, M) into buckets (B, D), always in the same order.

    The entries are gathered through the table. On a CPU, if a bucket has several entries, they are scattered, which is
    faster there and just as deterministic. The backward pass is a gather, whose backward pass is this sum again.

    Where it is known how many entries have a bucket, and all entries do, or all places of the table are taken, there is
    nothing to skip.
    """

    shared = (1, 2)

    @staticmethod
    def forward(x: Tensor, table: Tensor, bucket: Tensor, used: int | None) -> Tensor:
        if x.device.type == "cpu" and len(table) > 1:
            spare = used != x.shape[1]  # one more, for entries without a bucket
            sums = x.new_zeros(x.shape[0], table.shape[1] + spare).scatter_add_(1, bucket.expand_as(x), x)
            return sums[:, :-1].contiguous() if spare else sums
        padded = x if used == table.numel() else nn.functional.pad(x, (0, 1))  # entry M, a zero, pads the table
        entries = padded.index_select(1, table.flatten())
        return entries if len(table) == 1 else entries.view(x.shape[0], *table.shape).sum(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, *tables, ctx.used = inputs
        ctx.save_for_backward(*tables)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return call(_BucketGather, grad, *ctx.saved_tensors), None, None, None

    @staticmethod
    def tangent(ctx: Any, direction: Tensor, *_: Any) -> Any:
        return call(_BucketSum, direction, *ctx.saved_tensors, ctx.used)


class _BucketGather(SampleFunction):
    """Returns the value of each entry's bucket, (B, D) → (B, M); 0 for entries without one."""

    shared = (1, 2)

    @staticmethod
    def forward(y: Tensor, table: Tensor, bucket: Tensor) -> Tensor:
        return nn.functional.pad(y, (0, 1)).index_select(1, bucket)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return call(_BucketSum, grad, *ctx.saved_tensors, None), None, None

    @staticmethod
    def tangent(ctx: Any, direction: Tensor, *_: Any) -> Any:
        return call(_BucketGather, direction, *ctx.saved_tensors)


def bucket_sum(x: Tensor, bucket: Tensor, size: int, table: Tensor | None = None, used: int | None = None) -> Tensor:
    """Returns v with v_j = Σ x_m over the entries m with ``bucket[m] == j``.

    Deterministic on every device, and twice differentiable.

    Args:
        x: (B, M).
        bucket: (M,) integers from 0 to size − 1, or ``size`` for an entry to skip.
        size: D, the number of buckets.
        table: `bucket_table(bucket, size)`, if already known.
        used: how many entries have a bucket, if already known.

    Returns:
        (B, D).

    Example:
        >>> bucket_sum(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1, 0, 1]), 2)
        tensor([[2., 4.]])
    """
    table = bucket_table(bucket, size) if table is None else table
    result: Tensor = call(_BucketSum, x, table, bucket, used)
    return result


class BucketMap(Vector):
    """Base class of the vectors that add each entry of a matrix to one bucket.

    A subclass defines the buckets in `assign_buckets`, from its persistent buffers. The tables derived from them are
    not saved but rebuilt after `load_state_dict`, so buffers must not be modified otherwise, in place or by
    `torch.func.functional_call`.
    """

    dim: Tensor
    bucket: Tensor
    table: Tensor
    sign: Tensor
    sign_off: Tensor
    used: int

    def __init__(self, channels: Channels, out_features: int) -> None:
        super().__init__(channels, out_features)
        self.register_buffer("dim", torch.tensor(out_features, device="cpu"))

    def assign_buckets(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns the bucket and the sign of each entry of a flattened matrix, (C₁C₂,) each."""
        raise NotImplementedError

    def weight(self, dtype: torch.dtype) -> Tensor:
        """Returns the weight of each entry, (C₁C₂,): its sign, times √2 off the diagonal of a symmetric matrix."""
        sign = self.sign.to(dtype)
        return torch.add(sign, self.sign_off, alpha=2.0**0.5 - 1) if self.symmetric else sign

    def build(self) -> None:
        """Builds the tables; call it once the buffers exist."""
        bucket, sign = self.assign_buckets(self.dim.device)
        self.register_buffer("bucket", bucket, persistent=False)
        table = bucket_table(bucket, self.out_features)
        self.register_buffer("table", table, persistent=False)
        self.used = int((bucket < self.out_features).sum())
        self.register_buffer("sign", sign.to(torch.int8), persistent=False)  # not float, so that `half` leaves it
        off = self.sign.clone()
        off[:: self.sides[1] + 1] = 0
        self.register_buffer("sign_off", off, persistent=False)  # of symmetric matrices: 0 on the diagonal

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self.dim.is_meta:
            return
        if int(self.dim) != self.out_features:
            errors: list[str] = args[-1]
            errors.append(f"{prefix[:-1]} was saved with {int(self.dim)} dimensions, expected {self.out_features}.")
            self.dim.fill_(self.out_features)
        self.build()

    def forward(self, matrix: Tensor) -> Tensor:
        x = matrix.flatten(1) * self.weight(matrix.dtype)  # (B, C₁C₂)
        return bucket_sum(x, self.bucket, self.out_features, self.table, self.used)


def root_two(off: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns √2 where ``off`` is True and 1 elsewhere, in the full precision of the dtype."""
    return off.to(dtype) * (2.0**0.5 - 1) + 1

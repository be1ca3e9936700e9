"""BatchNorm over the batches of all processes, so that two processes compute what one would.

torch's own SyncBatchNorm works on GPUs only, and replaces the modules of a network.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class _SumOverProcesses(torch.autograd.Function):
    """The sum over all processes; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        torch.distributed.all_reduce(total)
        return total


class SynchronizedBatchNorm(TorchFunctionMode):
    """While it is active, every BatchNorm in training takes mean and variance over all processes.

    It works on any device and backend and leaves the modules as they are; without several processes it does nothing.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is functional.batch_norm and torch.distributed.is_initialized():
            return _batch_norm(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return functional.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    axes = [i for i in range(x.ndim) if i != 1]
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    processes = torch.distributed.get_world_size()
    count = wide.numel() / wide.shape[1] * processes  # every process has as many
    mean = _SumOverProcesses.apply(wide.sum(axes)) / count
    shape = [1, -1] + [1] * (x.ndim - 2)
    centred = wide - mean.view(shape)
    var = _SumOverProcesses.apply(centred.square().sum(axes)) / count
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * (count / max(count - 1, 1))).to(running_var.dtype), momentum)
    normal = centred * torch.rsqrt(var + eps).view(shape)
    if weight is not None:
        normal = normal * weight.view(shape)
    if bias is not None:
        normal = normal + bias.view(shape)
    return normal.to(x.dtype)

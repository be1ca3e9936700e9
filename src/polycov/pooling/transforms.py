"""Autograd Functions for every transform of torch: `torch.func`, forward-mode derivatives and `torch.compile`."""

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad


class SampleFunction(torch.autograd.Function):
    """Base class of Functions that map tensors (B, …) to tensors (B, …), sample by sample.

    A subclass defines ``forward`` without a context, ``setup_context``, ``backward`` and `tangent`, and is applied with
    `call`. What ``setup_context`` saves for ``backward`` is also saved for `tangent`.

    Attributes:
        shared: the positions of arguments without a batch dimension.
    """

    shared: tuple[int, ...] = ()

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Any:
        """Returns the derivative of the result in the direction of the tangents, one for each argument."""
        raise NotImplementedError


def call(function: type[SampleFunction], *arguments: Any) -> Any:
    """Applies a Function, under any transform; without a transform or gradients, its ``forward`` alone."""
    if torch.compiler.is_compiling():  # accepts no Function with a derivative in forward mode
        return function.apply(*arguments)
    if torch._C._are_functorch_transforms_active():
        return _for_func(function).apply(*arguments)
    if not torch.is_grad_enabled() and not _in_forward_mode():
        return function.forward(*arguments)
    return _for_eager(function).apply(*arguments)


def _in_forward_mode() -> bool:
    return forward_ad._current_level >= 0


def without_zeros(ctx: Any) -> None:
    """Makes ``backward`` receive None, instead of zeros, in place of missing gradients."""
    if not torch.compiler.is_compiling():  # removes zeros by itself
        ctx.set_materialize_grads(False)


@cache
def _for_eager(function: type[SampleFunction]) -> type[SampleFunction]:
    """The Function with a derivative in forward mode, and ``forward`` with a context, which torch applies faster."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = function.forward(*inputs)
        _save(function, ctx, inputs, output)
        return output

    rules = {"forward": forward, "setup_context": torch.autograd.Function.setup_context, "jvp": _forward_mode(function)}
    return _subclass(function, rules)


@cache
def _for_func(function: type[SampleFunction]) -> type[SampleFunction]:
    """The Function with the rules that `torch.func` asks for."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(function, ctx, inputs, output)

    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        if any(in_dims[i] is not None for i in function.shared):
            return _one_by_one(function, info.batch_size, in_dims, arguments)
        return _as_one_batch(function, info.batch_size, in_dims, arguments)

    return _subclass(function, {"setup_context": setup_context, "vmap": vmap, "jvp": _forward_mode(function)})


def _subclass(function: type[SampleFunction], methods: dict[str, Any]) -> type[SampleFunction]:
    return type(function.__name__, (function,), {name: staticmethod(method) for name, method in methods.items()})


def _save(function: type[SampleFunction], ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    function.setup_context(ctx, inputs, output)
    if _in_forward_mode():
        ctx.save_for_forward(*ctx.to_save)


def _forward_mode(function: type[SampleFunction]) -> Any:
    """The tangent as torch calls it.

    torch disables forward mode there, which makes a forward-mode derivative of the tangent wrong
    (https://github.com/pytorch/pytorch/issues/197867). It is enabled again, and saved tensors lose their own tangents.
    """

    def jvp(ctx: Any, *tangents: Any) -> Any:
        with forward_ad._set_fwd_grad_enabled(True):
            saved = tuple(map(_without_tangent, ctx.saved_tensors))
            return function.tangent(SimpleNamespace(**vars(ctx), saved_tensors=saved), *tangents)

    return jvp


def _without_tangent(x: Tensor | None) -> Tensor | None:
    return x if x is None or not x.is_floating_point() else forward_ad.unpack_dual(x).primal


def _as_one_batch(
    function: type[SampleFunction], size: int, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Joins the dimension of `vmap` with that of the samples, (V, B, …) → (V·B, …)."""

    def join(i: int, x: Any) -> Any:
        if i in function.shared or not isinstance(x, Tensor):
            return x
        return (x.expand(size, *x.shape) if in_dims[i] is None else x.movedim(in_dims[i], 0)).flatten(0, 1)

    results = call(function, *(join(i, x) for i, x in enumerate(arguments)))
    if isinstance(results, Tensor):
        return results.unflatten(0, (size, -1)), 0
    return tuple(x.unflatten(0, (size, -1)) for x in results), (0,) * len(results)


def _one_by_one(
    function: type[SampleFunction], size: int, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Loops over the dimension of `vmap`, because shared arguments have it too, as the buckets of stacked pools do."""

    def item(i: int) -> list[Any]:
        return [x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True)]

    return torch.stack([call(function, *item(i)) for i in range(size)]), 0


def _levels(x: Tensor) -> Iterator[Tensor]:
    """Yields a tensor, and the tensors inside it that transforms of `torch.func` have wrapped."""
    yield x
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
        yield x


def is_batched(x: Tensor) -> bool:
    """Returns whether a tensor is inside `torch.func.vmap`, where Python cannot read its values."""
    if torch.compiler.is_compiling() or not functorch.is_functorch_wrapped_tensor(x):
        return False
    return any(map(functorch.is_batchedtensor, _levels(x)))


def is_readable(x: Tensor) -> bool:
    """Returns whether Python can read the values of a tensor: not inside `torch.compile` or `torch.func.vmap`.

    Example:
        >>> is_readable(torch.zeros(2)), torch.func.vmap(lambda x: x + is_readable(x))(torch.zeros(2))
        (True, tensor([0., 0.]))
    """
    return not torch.compiler.is_compiling() and not is_batched(x)


def is_plain(x: Tensor) -> bool:
    """Returns whether a tensor is an ordinary one on a CPU, outside compilers, tracers and transforms.

    Example:
        >>> is_plain(torch.zeros(2)), torch.func.grad(lambda x: x * is_plain(x))(torch.tensor(1.0))
        (True, tensor(0.))
    """
    return (
        not torch.compiler.is_compiling()
        and type(x) is Tensor
        and x.device.type == "cpu"
        and not torch._C._get_tracing_state()
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
    )


def needs_gradient(x: Tensor) -> bool:
    """Returns whether a backward pass may ask for the gradient of a tensor, also inside `torch.func`."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return torch.is_grad_enabled() and x.requires_grad
    return any(y.requires_grad for y in _levels(x))


def has_derivative(x: Tensor) -> bool:
    """Returns whether the derivative with respect to a tensor may be asked for, in either mode."""
    return needs_gradient(x) or (not torch.compiler.is_compiling() and _in_forward_mode())


def may_be_differentiated(x: Tensor) -> bool:
    """Returns whether results that depend on a tensor may have derivatives, in either mode."""
    return torch.is_grad_enabled() or forward_ad.unpack_dual(x).tangent is not None


def add_product(total: Tensor, a: Tensor, b: Tensor, factor: float = 1.0) -> Tensor:
    """Returns total + factor · A B, (B, C, C) each; in place, except inside `vmap`, which has no rule for that."""
    if is_batched(total):
        return torch.baddbmm(total, a, b, alpha=factor)
    return total.baddbmm_(a, b, alpha=factor)

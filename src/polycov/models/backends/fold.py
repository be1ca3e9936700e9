"""BatchNorm folded into the convolution before it, in networks that are not trained."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_weights

from polycov.models.modes import evaluation_mode


def fold_batch_norm(network: nn.Module, image: Tensor) -> tuple[nn.Module, int]:
    """Returns a copy of a network without the BatchNorms that follow a convolution, and how many were folded.

    In evaluation y = γ (Wx − μ)/√(σ² + ε) + β is a convolution with the weights γW/√(σ² + ε) and the bias
    β − γμ/√(σ² + ε). Which layers follow each other is seen in one pass of an image, so any code in between is allowed.
    A convolution whose output is read twice would be folded wrongly: compare the copy with the network.

    Args:
        network: network in evaluation mode; it is not changed.
        image: an input of the network.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).eval()
        >>> folded, count = fold_batch_norm(network, torch.zeros(1, 3, 2, 2))
        >>> count, type(folded[1]).__name__
        (1, 'Identity')
    """
    folded = copy.deepcopy(network)
    with evaluation_mode(folded), torch.no_grad():
        pairs = _pairs(folded, image)
        for convolution, norm in pairs:
            _fold(convolution, norm)
    replaced = {norm: _rest(norm) for _, norm in pairs}
    for parent in list(folded.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm) and child in replaced:
                setattr(parent, name, replaced[child])
    return folded.eval(), len(pairs)


def _pairs(network: nn.Module, image: Tensor) -> list[tuple[nn.Conv2d, _BatchNorm]]:
    """Convolutions with the BatchNorm that reads their output, where each of them runs once."""
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # the tensors are kept, so that no other gets their number
    pairs: list[tuple[nn.Conv2d, _BatchNorm]] = []
    runs: dict[nn.Module, int] = {}

    def remember(module: nn.Module, _: Any, output: Tensor) -> None:
        runs[module] = runs.get(module, 0) + 1
        if isinstance(module, nn.Conv2d):
            outputs[id(output)] = module, output

    def match(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if isinstance(module, _BatchNorm) and id(inputs[0]) in outputs:
            pairs.append((outputs[id(inputs[0])][0], module))

    hooks = []
    for module in network.modules():
        if _plain(module):
            hooks += [module.register_forward_hook(remember), module.register_forward_pre_hook(match)]
    try:
        network(image)
    finally:
        for hook in hooks:
            hook.remove()
    return [pair for pair in pairs if all(runs.get(module) == 1 for module in pair)]


def _plain(module: nn.Module) -> bool:
    """Whether a layer uses its weights as they are; a standardised convolution, for example, does not."""
    if isinstance(module, nn.Conv2d):
        return type(module) is nn.Conv2d or type(module).__name__ == "Conv2dSame"  # timm's, with another padding
    return isinstance(module, _BatchNorm) and module.running_mean is not None


def _fold(convolution: nn.Conv2d, norm: _BatchNorm) -> None:
    """Scales the weights of a convolution, in float64: the only rounding is that of the result."""
    statistics = (norm.running_mean, norm.running_var)
    mean, variance = (value.double() for value in statistics if value is not None)
    scale, shift = (None if value is None else value.double() for value in (norm.weight, norm.bias))
    bias = None if convolution.bias is None else convolution.bias.double()
    weight = convolution.weight.double()
    fused = fuse_conv_bn_weights(weight, bias, mean, variance, norm.eps, scale, shift)
    like = convolution.weight
    layout = torch.channels_last if like.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    weight = fused[0].detach().to(like.dtype).contiguous(memory_format=layout)
    convolution.weight = nn.Parameter(weight, requires_grad=False)
    convolution.bias = nn.Parameter(fused[1].detach().to(like.dtype), requires_grad=False)


def _rest(norm: nn.Module) -> nn.Module:
    """What is left of a layer without its normalisation: timm's contain an activation."""
    parts = [getattr(norm, name) for name in ("drop", "act") if isinstance(getattr(norm, name, None), nn.Module)]
    parts = [part for part in parts if not isinstance(part, nn.Identity)]
    return parts[0] if len(parts) == 1 else nn.Sequential(*parts) if parts else nn.Identity()

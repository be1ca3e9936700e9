"""Grad-CAM and HiResCAM, the usual maps of what a classifier looks at, to compare the exact maps with."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError
from polycov.models.model import Model
from polycov.models.modes import evaluation_mode
from polycov.pooling.tokens import maps_to_tokens

VANISHING = 1e-3  # of a mean gradient over the mean size of the gradients


def grad_cam(
    model: Model, images: Tensor, classes: Sequence[int] | None = None, *, layer: str = "local", relu: bool = True
) -> Tensor:
    """Returns the map ReLU(Σ_c α_c x_nc), with α_c the mean over locations n of ∂logit/∂x_nc.

    With average pooling and a linear reduction or none, it is the exact map up to a constant and the ReLU. With a
    linear reduction the layers "local" and "reduced" give the same map up to a constant.

    A covariance does not change when all locations are shifted alike, so Σ_n ∂logit/∂x_n = 0: on the features before a
    covariance α is 0 but for rounding, and the map is empty. `find_block` returns a layer where it is not.

    Args:
        model: to explain.
        images: prepared, (B, 3, H, W).
        classes: the index of the class of each image; default: the predicted class.
        layer: "local", the features before the reduction; "reduced", those that are pooled; or a module of the
            backbone by its name, such as "network.layer3".
        relu: False to keep negative values, which rank the regions that the ReLU would set to 0.

    Returns:
        (B, N), one value per location.

    Raises:
        PolycovError: on an unknown layer, or one without local features.

    Reference: Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization",
    ICCV 2017.
    """
    values, gradients = _values_and_gradients(model, images, classes, layer)
    maps = (gradients.mean(1, keepdim=True) @ values.mT).squeeze(1)
    return maps.relu() if relu else maps


def hires_cam(
    model: Model, images: Tensor, classes: Sequence[int] | None = None, *, layer: str = "local", relu: bool = True
) -> Tensor:
    """Returns the map ReLU(Σ_c x_nc · ∂logit/∂x_nc): each location with its own gradient; arguments as in `grad_cam`.

    Reference: Draelos, Carin, "Use HiResCAM instead of Grad-CAM for faithful explanations of convolutional neural
    networks", 2020.
    """
    values, gradients = _values_and_gradients(model, images, classes, layer)
    maps = (values * gradients).sum(-1)
    return maps.relu() if relu else maps


def find_block(model: Model, image: Tensor) -> str:
    """Returns the name of the last block of the backbone before the local features on which Grad-CAM is not empty.

    A block is an element of a Sequential or ModuleList whose output has as many locations as the local features.

    Args:
        model: to explain.
        image: prepared, (1, 3, H, W).

    Raises:
        PolycovError: if there is none.
    """
    backbone = model.backbone
    containers = [
        name for name, module in backbone.named_modules() if isinstance(module, nn.Sequential | nn.ModuleList)
    ]
    names = [name for name, _ in backbone.named_modules() if name.rpartition(".")[0] in containers]
    local, _ = _values_and_gradients(model, image, None, "local")
    for name in reversed(names):
        try:
            values, gradients = _values_and_gradients(model, image, None, name)
        except PolycovError:  # not used, or not local features
            continue
        same = values.shape == local.shape and bool((values == local).all())
        alike = values.shape[1] == local.shape[1] and not same
        if alike and float(gradients.mean(1).abs().mean()) > VANISHING * float(gradients.abs().mean()):
            return name
    raise PolycovError(f"No block of the backbone {backbone.name!r} suits Grad-CAM.")


def _values_and_gradients(
    model: Model, images: Tensor, classes: Sequence[int] | None, layer: str
) -> tuple[Tensor, Tensor]:
    """The output of a layer and the gradient of the logits there, (B, N, C) each."""
    module = _find(model, layer)
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: object, output: Tensor) -> Tensor | None:
        if not isinstance(output, Tensor) or output.ndim not in (3, 4):
            return None
        kept.append(output.detach().requires_grad_())
        return kept[-1].clone()  # later layers may work in place

    handle = module.register_forward_hook(keep)
    try:
        with torch.enable_grad(), evaluation_mode(model):
            logits = model(images.to(model.device))
            chosen = logits.argmax(1) if classes is None else torch.as_tensor(list(classes), device=logits.device)
            if not kept:
                raise PolycovError(f"The layer {layer!r} gives no local features.")
            total = logits.gather(1, chosen[:, None]).sum()
            (gradient,) = torch.autograd.grad(total, kept[-1], allow_unused=True)
    finally:
        handle.remove()
    if gradient is None:
        raise PolycovError(f"The logits do not depend on the layer {layer!r}.")
    return maps_to_tokens(kept[-1].detach()), maps_to_tokens(gradient)


def _find(model: Model, layer: str) -> nn.Module:
    if layer == "local":
        return model.backbone
    if layer == "reduced":
        return model.reduction
    try:
        return model.backbone.get_submodule(layer)
    except AttributeError as error:
        raise PolycovError(
            f"Unknown layer {layer!r}. Expected 'local', 'reduced', or a module of {model.backbone.name!r}."
        ) from error

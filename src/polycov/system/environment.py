"""The versions of what a result depends on."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch


def versions() -> dict[str, str]:
    """Returns the versions of Python, torch and what is installed of the rest."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("polycov", "timm", "accelerate", "numpy", "pillow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found

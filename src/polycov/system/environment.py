"""What a result depends on besides its options: versions, hardware, memory."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("polycov", "timm", "accelerate", "numpy", "pillow")
CPU_INFO = Path("/proc/cpuinfo")


def versions() -> dict[str, str]:
    """Returns the versions of Python, torch and those of `PACKAGES` that are installed."""
    installed = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def hardware(device: str | torch.device = "cpu") -> str:
    """Returns the name of the GPU, or that of the processor with the number of threads in use."""
    if str(device).startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    name = platform.processor() or platform.machine()
    if CPU_INFO.is_file():
        match = re.search(r"model name\s*: (.*)", CPU_INFO.read_text(encoding="utf-8", errors="replace"))
        name = match[1] if match else name
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def total_memory() -> int:
    """Returns the memory of this machine in bytes."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import psutil  # Windows; a dependency of accelerate

    return int(psutil.virtual_memory().total)

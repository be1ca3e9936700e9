"""What a result depends on besides its options: versions, hardware, memory."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def versions() -> dict[str, str]:
    """Returns the versions of Python, torch and whatever else is installed of what results depend on."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("polycov", "timm", "accelerate", "numpy", "pillow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware(device: str | torch.device = "cpu") -> str:
    """Returns the name of the processor with the number of threads, or of the GPU."""
    if str(device).startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"model name\s*: (.*)", info.read_text(encoding="utf-8"))
        name = match[1] if match else name
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def total_memory() -> int:
    """Returns the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

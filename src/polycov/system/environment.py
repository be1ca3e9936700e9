"""What a result depends on besides its options: versions, hardware, memory."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("polycov", "timm", "accelerate", "numpy", "pillow")
CPU_INFO, MEMORY_INFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
CONTAINER = (  # limit and use of memory, in both versions of control groups
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


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
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}"


def _processor() -> str:
    """The name of the processor; a name without a number, as virtual machines have them, with family and model."""
    listed = CPU_INFO.read_text(encoding="utf-8", errors="replace") if CPU_INFO.is_file() else ""
    found = {key: re.search(rf"(?m)^{key}\s*: (.*)", listed) for key in ("model name", "cpu family", "model")}
    name, family, model = (match[1] if match else "" for match in found.values())
    if name and family and model and not re.search(r"\d", name):
        return f"{name} family {family} model {model}"
    return name or platform.processor() or platform.machine()


def total_memory() -> int:
    """Returns the memory of this machine in bytes."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import psutil  # Windows; a dependency of accelerate

    return int(psutil.virtual_memory().total)


def free_memory() -> int:
    """Returns the memory that is available without swapping, in bytes, within the limit of a container."""
    free = [total_memory()]
    if MEMORY_INFO.is_file():
        match = re.search(r"MemAvailable:\s*(\d+) kB", MEMORY_INFO.read_text(encoding="utf-8", errors="replace"))
        free += [1024 * int(match[1])] if match else []
    for folder, limit, used in CONTAINER:
        most, now = _number(folder / limit, r"\d+"), _number(folder / used, r"\d+")
        if most is not None and now is not None:
            files = _number(folder / "memory.stat", r"(?m)(?<=inactive_file )\d+") or 0  # kept, but given up on demand
            free.append(max(most - now + files, 0))
    return min(free)


def _number(path: Path, pattern: str) -> int | None:
    """The first number in a file; None if there is none, such as in "max"."""
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return int(match[0]) if match else None

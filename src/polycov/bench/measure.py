"""How time and memory are measured: several things in one run, in turns, so that a slow moment hits all alike."""

import contextlib
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

Run = Callable[[], object]


def interleave(runs: dict[str, Run], rounds: int, tick: Callable[[], None] | None = None) -> dict[str, list[float]]:
    """Times each of several runs once a round, in an order that rotates from round to round, after one warm-up.

    Args:
        runs: what to time, by name.
        rounds: how often.
        tick: called after each round, the warm-up included; for a progress bar.

    Returns:
        Seconds of each round, by name; the warm-up left out.
    """
    names = list(runs)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            began = time.perf_counter()
            runs[name]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                times[name].append(time.perf_counter() - began)
        if tick:
            tick()
    return times


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Returns the lower quartile, the median and the upper quartile.

    Example:
        >>> quartiles([4.0, 1.0, 2.0, 3.0, 5.0])
        (2.0, 3.0, 4.0)
    """
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratios(times: list[float], reference: list[float]) -> list[float]:
    """Returns time over reference, round by round."""
    return [a / b for a, b in zip(times, reference, strict=True)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Sends standard error nowhere: the profiler of torch logs its start and stop there, through a progress bar."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def peak_memory(run: Run, device: str) -> int:
    """Returns the bytes that a run allocates at its peak, beyond what is there before, as torch's allocator sees it."""
    run()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _quiet(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run()
    held = peak = 0
    kineto = profile.profiler.kineto_results
    for event in kineto.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def forward(module: Callable[[Tensor], Tensor], x: Tensor) -> Run:
    """Returns a run of the forward pass alone."""

    def run() -> None:
        with torch.inference_mode():
            module(x)

    return run


def training_step(module: Callable[[Tensor], Tensor], x: Tensor, *, to_input: bool = True) -> Run:
    """Returns a run of forward and backward, down to the module's parameters and, if wanted, to its input."""
    leaf = x.detach().clone().requires_grad_(to_input)

    def run() -> None:
        y = module(leaf)
        y.backward(torch.ones_like(y))
        leaf.grad = None

    return run


def hardware(device: str) -> str:
    """Returns the name of the processor and the number of threads, or of the graphics card."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"model name\s*: (.*)", info.read_text(encoding="utf-8"))
        name = match[1] if match else name
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def slug(text: str) -> str:
    """Returns a text as a part of a file name.

    Example:
        >>> slug("AMD EPYC, 2 threads")
        'amd-epyc-2-threads'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")

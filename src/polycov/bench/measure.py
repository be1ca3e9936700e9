"""Measuring time and memory. Candidates are timed in turns, so that a slow moment affects all of them."""

import contextlib
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Job = Callable[[], object]
Tick = Callable[[], None]


def interleave(jobs: dict[str, Job], rounds: int, tick: Tick | None = None) -> dict[str, list[float]]:
    """Times each job once per round, in another random order each, after one warm-up round.

    Args:
        jobs: what to time, by name.
        rounds: the number of rounds.
        tick: called after each round, including the warm-up; for a progress bar.

    Returns:
        The seconds of each round by name, without the warm-up.
    """
    names = list(jobs)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in random.Random(turn).sample(names, len(names)):  # what runs before may leave cold caches behind
            begin = time.perf_counter()
            jobs[name]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                times[name].append(time.perf_counter() - begin)
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
    """Returns time divided by reference, round by round."""
    return [a / b for a, b in zip(times, reference, strict=True)]


def time_columns(times: list[float], reference: list[float]) -> dict[str, float]:
    """Returns median and quartiles of times, in milliseconds, and of their ratios to the reference of the same round.

    Example:
        >>> time_columns([0.002, 0.002], [0.001, 0.001])["ratio"]
        2.0
    """
    low, middle, high = quartiles(times)
    ratio_low, ratio, ratio_high = quartiles(ratios(times, reference))
    return {
        "milliseconds": 1e3 * middle,
        "lower_quartile": 1e3 * low,
        "upper_quartile": 1e3 * high,
        "ratio": ratio,
        "ratio_lower_quartile": ratio_low,
        "ratio_upper_quartile": ratio_high,
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discards standard error: torch's profiler logs there, which would disturb a progress bar."""
    sys.stderr.flush()
    original, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(null)


def peak_memory(job: Job, device: str) -> int:
    """Returns the peak number of bytes that a job allocates through torch, in addition to what is already allocated."""
    job()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        job()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _quiet(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        job()
    allocated = peak = 0
    kineto = profile.profiler.kineto_results
    for event in kineto.events():
        if event.name() == "[memory]":
            allocated += event.nbytes()
            peak = max(peak, allocated)
    return peak


def forward(module: Callable[[Tensor], Tensor], x: Tensor) -> Job:
    """Returns a job that runs the forward pass alone."""

    def job() -> None:
        with torch.inference_mode():
            module(x)

    return job


def training_step(module: Callable[[Tensor], Tensor], x: Tensor, *, to_input: bool = True) -> Job:
    """Returns a job that runs forward and backward, to the module's parameters and, if ``to_input``, to its input."""
    leaf = x.detach().clone().requires_grad_(to_input)

    def job() -> None:
        y = module(leaf)
        y.backward(torch.ones_like(y))
        leaf.grad = None

    return job


def timed_pass(mode: str, module: Callable[[Tensor], Tensor], x: Tensor) -> Job:
    """Returns a job for a mode: "eval" for the forward pass alone, "train" for a training step."""
    return forward(module, x) if mode == "eval" else training_step(module, x)


def slug(text: str) -> str:
    """Returns a text in a form that suits a file name, without what is on every processor.

    Example:
        >>> slug("AMD EPYC, 2 threads"), slug("Intel(R) Xeon(R) Processor @ 2.50GHz, 2 threads")
        ('amd-epyc-2-threads', 'intel-xeon-2-threads')
    """
    name = re.sub(r"\((r|tm)\)|\bprocessor\b|\bcpu\b|@ *[\d.]+ *ghz", " ", text.lower())
    return re.sub(r"[^a-z0-9.]+", "-", name).strip("-")

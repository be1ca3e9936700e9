"""Threads for what torch computes on a CPU one sample after another: each computes parts of the batch, on one core."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor

from polycov.pooling.transforms import is_plain

SMALLEST = 64  # rows of a matrix; smaller ones are done sooner than handed over
PARTS = 3  # of a batch, for each thread: a core that is also busy with something else then does fewer


def count_parts(matrix: Tensor) -> int:
    """Returns the number of parts that a batch (B, C, C) is worth splitting into for several threads.

    It is 1 where threads would not see the same tensor: inside compilers and transforms, which belong to one thread.

    Example:
        >>> count_parts(torch.zeros(1, 256, 256))
        1
    """
    if not is_plain(matrix) or not torch.backends.openmp.is_available():  # with which threads can differ in their cores
        return 1
    threads, (batch, _, size) = torch.get_num_threads(), matrix.shape
    return min(PARTS * threads, batch) if 1 < threads <= batch and size >= SMALLEST else 1


def in_threads(function: Callable[..., None], *parts: Sequence[Tensor]) -> None:
    """Calls ``function`` with the first part of everything, the second of everything and so on, several at a time.

    Example:
        >>> x, doubled = torch.arange(4.0), torch.zeros(4)
        >>> in_threads(lambda a, b: b.copy_(2 * a), x.split(2), doubled.split(2))
        >>> doubled
        tensor([0., 2., 4., 6.])
    """
    with _LOCK:
        executor = _start(torch.get_num_threads())
    inference = torch.is_inference_mode_enabled()

    def call(*part: Tensor) -> None:
        with torch.inference_mode(inference), torch.no_grad():  # threads do not inherit them
            function(*part)

    for future in [executor.submit(call, *part) for part in zip(*parts, strict=True)]:
        future.result()


_LOCK = threading.Lock()
_EXECUTORS: dict[int, ThreadPoolExecutor] = {}  # by number of threads


def _start(count: int) -> ThreadPoolExecutor:
    """Returns threads that use one core each, and leaves the number of cores that all others use as it is."""
    if count not in _EXECUTORS:
        started = threading.Barrier(count + 1)

        def use_one_core() -> None:
            torch.get_num_threads()  # torch sets it at first use, and would undo the next line
            torch.set_num_threads(1)  # for this thread; also for new ones, until it is set again below
            with suppress(threading.BrokenBarrierError):
                started.wait()

        before, executor = torch.get_num_threads(), ThreadPoolExecutor(count, "polycov", use_one_core)
        try:
            for _ in range(count):
                executor.submit(int)
            started.wait()
        finally:
            started.abort()  # after an interruption nothing may wait for the others
            torch.set_num_threads(before)
        _EXECUTORS[count] = executor
    return _EXECUTORS[count]


def _forget() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    _EXECUTORS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # a child has no threads but its own

"""Sharing a comparison among processes: helpers of this process, or the processes of a launcher.

Subprocesses rather than multiprocessing, which would import the user's script again.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from polycov.comparing.options import CompareOptions
from polycov.progress import Progress
from polycov.system.structure import to_plain

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def outside_process_group() -> Iterator[int]:
    """Leaves the process group of a launcher within the block: each process measures its own settings, on a GPU of its
    own if there are any. Yields the rank among the processes.
    """
    before = {name: os.environ.get(name) for name in (*LAUNCHER_VARIABLES, "CUDA_VISIBLE_DEVICES")}
    rank, local = int(before["RANK"] or "0"), before["LOCAL_RANK"]
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    if local is not None:
        visible = (before["CUDA_VISIBLE_DEVICES"] or "").split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(local)] if len(visible) > int(local) and visible[0] else local
    try:
        yield rank
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def helpers(options: CompareOptions, folder: Path, progress: Progress) -> Iterator[None]:
    """Runs ``jobs − 1`` helper processes on the same comparison; if the block fails, they are terminated."""
    threads, before = max(1, (os.cpu_count() or 1) // options.jobs), torch.get_num_threads()
    processes = [_start_helper(options, folder, threads) for _ in range(options.jobs - 1)]
    if processes:
        torch.set_num_threads(threads)
    try:
        yield
        failed = [code for process in processes if (code := process.wait()) > 0]
    except BaseException:
        _end(processes)
        raise
    finally:
        torch.set_num_threads(before)
    if failed:
        progress.message(f"{len(failed)} of {len(processes)} helper processes failed; this one measured the rest.")


def _end(processes: "list[subprocess.Popen[bytes]]", seconds: float = 1.0) -> None:
    """Asks processes to stop, and kills those that do not at once: that loses no more than the settings in flight."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start_helper(options: CompareOptions, folder: Path, threads: int) -> "subprocess.Popen[bytes]":
    """Starts another process on the same comparison, silent, with its share of the cores."""
    values = json.dumps(to_plain(replace(options, jobs=1, out=folder)))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "polycov.comparing.helper", values, str(os.getpid())]
    return subprocess.Popen(command, env=environment, start_new_session=True)  # Ctrl-C is for this process alone

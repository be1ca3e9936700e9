"""A comparison within ``accelerate launch`` or ``torchrun``: one process owns it, and starts helpers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from polycov.comparing.options import CompareOptions
from polycov.errors import PolycovError
from polycov.progress import Progress

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launcher_rank() -> int:
    """Returns the rank of this process among those of a launcher; 0 without one."""
    return int(os.environ.get("RANK", "0"))


def with_launcher(options: CompareOptions, progress: Progress) -> CompareOptions:
    """Returns the options with as many jobs as the launcher started processes on this machine.

    Raises:
        PolycovError: in any process but the first.
    """
    if launcher_rank() > 0:
        raise PolycovError(
            "A comparison belongs to one process: call it where RANK is 0, with jobs=… for helper processes."
        )
    here, everywhere = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if everywhere > here:
        progress.message("note: processes on other machines do nothing; to share among machines use --engine ray")
    if options.engine.engine == "ray" or here <= options.engine.jobs:
        return options
    return replace(options, engine=replace(options.engine, jobs=here))


@contextmanager
def outside_process_group() -> Iterator[None]:
    """Leaves the process group of a launcher within the block: each setting is trained by one process."""
    before = {name: os.environ.get(name) for name in LAUNCHER_VARIABLES}
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value

"""Runs commands of polycov that are killed: right before or after the nth change of the disk, or after some time.

``python -m kills.dying`` imports everything once, then reads a request per line and answers with a line: each command
runs in a fork, so that a kill costs the work of the command and not the imports.
"""

import importlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

ROOMS = ("training.train", "comparing.compare", "inference.embed", "inference.predict", "explaining.explain")
PACKAGES = (  # what commands import when they need it
    "torch.utils.tensorboard",
    "torch._dynamo",
    "torch._inductor",
    "torch.onnx._internal.exporter._core",
    "onnxscript",
    "onnxruntime",
    "pyarrow.parquet",
    "tyro",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
)
COMMANDS = ("train", "compare", "embed", "export", "predict")


@dataclass(frozen=True)
class Request:
    """A command to run.

    Attributes:
        arguments: of polycov.
        log: a file for what it changes on disk; what it writes goes to a file beside it.
        change: kill it around the change with this number: a file is renamed, or lines appended to it are synced.
        after: right after the change rather than before.
        seconds: send it ``number`` after this time.
        number: of the signal.
    """

    arguments: list[str]
    log: str
    change: int | None = None
    after: bool = False
    seconds: float | None = None
    number: int = signal.SIGKILL


@dataclass(frozen=True)
class Answer:
    """What became of it.

    Attributes:
        code: exit code; negative if a signal ended it.
        seconds: from its start to its end.
        after: from the signal to its end; None if there was none.
    """

    code: int
    seconds: float
    after: float | None


def run(request: Request) -> Answer:
    """Runs a command in a fork."""
    child = os.fork()
    if not child:
        _run_here(request)
    begin, sent = time.monotonic(), None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        now = time.monotonic()
        if ended:
            return Answer(os.waitstatus_to_exitcode(status), now - begin, None if sent is None else now - sent)
        if request.seconds is not None and sent is None and now - begin >= request.seconds:
            os.kill(child, request.number)
            sent = now
        time.sleep(0.002)


def _run_here(request: Request) -> None:
    code = 1
    try:
        _prepare(request)
        code = _exit_code(request.arguments)
    finally:
        os._exit(code)


def _prepare(request: Request) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command has begun
    with open(f"{request.log}.out", "wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    torch.seed()  # nothing random is the same as in another process
    random.seed()
    die_around(request)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it


def die_around(request: Request) -> None:
    """Makes this process log each change of the disk, and kill itself right before or after one of them."""
    descriptor = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    count, replace, fsync = 0, os.replace, os.fsync

    def around(change: Callable[..., Any], path: Any, *arguments: Any) -> None:
        nonlocal count
        number, count = count, count + 1
        os.write(descriptor, f"{os.fspath(path)}\n".encode())
        for after in (False, True):
            if number == request.change and after is request.after:
                os.kill(os.getpid(), signal.SIGKILL)
            if not after:
                change(*arguments)

    def replaced(source: Any, target: Any) -> None:
        around(replace, target, source, target)

    def synced(file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        if path.endswith(".jsonl"):
            around(fsync, path, file)
        else:
            fsync(file)  # of a temporary file, or of a folder: the rename in between counts

    os.replace, os.fsync = replaced, synced  # type: ignore[assignment]


def _exit_code(arguments: list[str]) -> int:
    from polycov.commands.main import main

    try:
        main(arguments)
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def serve() -> None:
    """Answers requests until there are no more."""
    commands = (f"polycov.commands.{name}" for name in COMMANDS)
    for name in (*(f"polycov.{room}" for room in ROOMS), *commands, *PACKAGES):
        with suppress(ImportError):
            importlib.import_module(name)
    importlib.import_module("polycov.models.networks").import_timm()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        answers.write(json.dumps(asdict(run(Request(**json.loads(line))))) + "\n")


if __name__ == "__main__":
    serve()

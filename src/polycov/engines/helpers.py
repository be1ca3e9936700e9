"""Helper processes of this machine: they are sent work and tasks through pipes, and stop when their owner dies.

Subprocesses rather than multiprocessing, which would import the user's script again.
"""

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from polycov.engines.crew import Crew
from polycov.engines.work import Outcome, Work


class Helper:
    """A process that does one task at a time.

    Args:
        environment: its environment variables.
        answers: receives this helper with the outcome of each message; with None when the process has ended.

    Attributes:
        unanswered: messages whose answers nobody has taken yet.
    """

    def __init__(self, environment: dict[str, str], answers: "queue.Queue[tuple[Helper, Outcome | None]]") -> None:
        command = [sys.executable, "-m", "polycov.engines.helper", str(os.getpid())]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )  # in a session of its own: Ctrl-C is for this process alone
        self._answers, self.unanswered = answers, 0
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, message: Any) -> None:
        """Sends work or a task. If the process is dead, its end has been or will be among the answers."""
        pipe = self.process.stdin
        self.unanswered += 1
        if pipe is not None:
            with suppress(BrokenPipeError):
                pickle.dump(message, pipe)
                pipe.flush()

    def _listen(self) -> None:
        outcome: Outcome | None = Outcome()
        while outcome is not None:
            try:
                outcome = pickle.load(self.process.stdout)  # type: ignore[arg-type]
            except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # it has ended, perhaps within an answer
                outcome = None
            self._answers.put((self, outcome))


class Helpers:
    """Up to ``count`` helper processes, as a context manager. They are started when needed and keep their imports.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.answers: queue.Queue[tuple[Helper, Outcome | None]] = queue.Queue()
        self._running: dict[int, Helper] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _end([helper.process for helper in self._running.values()])

    def crew(self, work: Work[Any, Any]) -> Crew:
        """Returns the helpers, who will know this work."""
        return _HelperCrew(self, work)

    def get(self, number: int) -> Helper:
        """Returns a helper by its number, from 0; starts it if it does not run."""
        if number not in self._running:
            self._running[number] = Helper(helper_environment(number, self.count), self.answers)
        return self._running[number]

    def forget(self, helper: Helper) -> None:
        """A helper has ended; another can take its number."""
        for number, other in list(self._running.items()):
            if other is helper:
                _end([helper.process])
                del self._running[number]


class _HelperCrew(Crew):
    def __init__(self, helpers: Helpers, work: Work[Any, Any]) -> None:
        self._helpers, self._work = helpers, work
        self._free = list(range(helpers.count))
        self._numbers: dict[Helper, int] = {}
        self._stale: dict[Helper, int] = {}  # answers to come that are to earlier work, which nobody waits for

    def hire(self) -> Helper | None:
        if not self._free:
            return None
        number = self._free.pop(0)
        helper = self._helpers.get(number)
        self._numbers[helper], self._stale[helper] = number, helper.unanswered
        helper.send(self._work)
        return helper

    def hand(self, worker: Helper, task: Any) -> None:
        worker.send((task,))

    def wait(self) -> list[tuple[Helper, Outcome | None]]:
        try:
            helper, outcome = self._helpers.answers.get(timeout=0.5)  # a wait without end ignores Ctrl-C on Windows
        except queue.Empty:
            return []
        helper.unanswered -= 1
        if outcome is None:
            self._helpers.forget(helper)
        if helper not in self._numbers:
            return []
        if outcome is None:
            self._free.append(self._numbers.pop(helper))
        elif self._stale[helper]:
            self._stale[helper] -= 1
            return []
        return [(helper, outcome)]

    def dismiss(self) -> None:
        """They stay for other work, until their owner ends them."""


def helper_environment(number: int, count: int) -> dict[str, str]:
    """Returns the environment of a helper: its share of the cores, and one of the GPUs if there are any."""
    import torch

    threads = max(1, (os.cpu_count() or 1) // count)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if gpus := torch.cuda.device_count():
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        environment["CUDA_VISIBLE_DEVICES"] = (visible or [str(i) for i in range(gpus)])[number % gpus]
    return environment


def _end(processes: "list[subprocess.Popen[bytes]]", seconds: float = 0.2) -> None:
    """Asks processes to stop, and kills those that do not at once: that loses no more than the tasks in flight."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not read yet is lost
                    pipe.close()

"""A Ray cluster: actors that each hold the work, as many as the cluster has room for.

Actors rather than tasks, since a network is loaded once and a GPU stays with it; an actor whose machine dies is
replaced by one elsewhere, and its task given to another. Not Ray Data: it would decide where an output file ends and
begin again from nothing after an interruption, whereas here each shard is a task, and those on disk are done.
"""

import importlib
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from polycov.engines.crew import Crew
from polycov.engines.work import Outcome, Work, perform
from polycov.errors import MissingDependencyError, PolycovError
from polycov.system.signals import SIGNALS

MOMENT = 0.5  # seconds between two looks at signals


def import_ray() -> Any:
    """Returns the module ray.

    Raises:
        MissingDependencyError: if it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingDependencyError(
            f"--engine ray needs Ray ({error}). Install it on all machines with: pip install 'polycov[ray]'"
        ) from error


class RayCluster:
    """A connection to the cluster that RAY_ADDRESS names, or to one of this machine alone that ends with the block.

    A connection that the caller has made already (``ray.init``) is used and left open.
    """

    def __init__(self) -> None:
        self.ray = import_ray()
        self.spare: list[Any] = []  # actors without work, which have done their imports
        self._needs = (0.0, 0.0)  # of each of them
        self._connected = False

    def __enter__(self) -> Self:
        if not self.ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
            address = os.environ.get("RAY_ADDRESS")
            alone: dict[str, Any] = {} if address else {"include_dashboard": False}
            try:
                with _own_signals(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.ray.init(address=address or "local", log_to_driver=False, logging_level="error", **alone)
            except (ConnectionError, RuntimeError, ValueError) as error:
                where = f"the Ray cluster {address!r} (RAY_ADDRESS)" if address else "Ray on this machine"
                raise PolycovError(f"Cannot connect to {where}: {error}") from error
            self._connected = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_spare()
        if self._connected:
            self.ray.shutdown()

    def _end_spare(self) -> None:
        while self.spare:
            self.ray.kill(self.spare.pop())

    def crew(self, work: Work[Any, Any], cpus: float, gpus: float | None) -> Crew:
        """Returns workers that know this work, each with so many CPUs and GPUs."""
        if gpus is None:
            gpus = 1.0 if work.uses_gpu and self.ray.cluster_resources().get("GPU", 0) >= 1 else 0.0
        if self._needs != (cpus, gpus):
            self._end_spare()
            self._needs = (cpus, gpus)
        return _ActorCrew(self, work, cpus, gpus)


class _Actor:
    """Lives in a process of the cluster, and does one task at a time."""

    def __init__(self, folder: str, gpus: float) -> None:
        with suppress(OSError):  # paths relative to it may not be needed
            os.chdir(folder)
        if not gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self._work: Work[Any, Any] | None = None

    def start(self, work: list[Any]) -> Outcome:
        self._work = import_ray().get(work[0])
        return Outcome()

    def do(self, task: Any) -> Outcome:
        return Outcome() if self._work is None else perform(self._work, task)


class _ActorCrew(Crew):
    def __init__(self, cluster: RayCluster, work: Work[Any, Any], cpus: float, gpus: float) -> None:
        self._cluster, self._ray = cluster, cluster.ray
        self._work = [self._ray.put(work)]
        self._cpus, self._gpus = cpus, gpus
        self._class = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0)(_Actor)
        self._alive: set[Any] = set()
        self._running: dict[Any, Any] = {}  # what was asked for, and of whom

    def hire(self) -> Any:
        room = self._room()
        if not room and not self._alive:
            raise PolycovError(
                f"No machine of the Ray cluster has {self._cpus:g} CPUs and {self._gpus:g} GPUs, which each task asks "
                "for: see --task-cpus and --task-gpus."
            )
        if len(self._alive) >= room:
            return None
        spare = self._cluster.spare
        actor = spare.pop() if spare else self._class.remote(os.getcwd(), self._gpus)
        self._alive.add(actor)
        self._running[actor.start.remote(self._work)] = actor
        return actor

    def _room(self) -> int:
        """How many workers fit on the machines of the cluster as it is now."""
        return sum(self._fit(node["Resources"]) for node in self._ray.nodes() if node["Alive"])

    def _fit(self, resources: dict[str, float]) -> int:
        fit = int(resources.get("CPU", 0) / self._cpus)
        return min(fit, int(resources.get("GPU", 0) / self._gpus)) if self._gpus else fit

    def hand(self, worker: Any, task: Any) -> None:
        self._running[worker.do.remote(task)] = worker

    def wait(self) -> list[tuple[Any, Outcome | None]]:
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=MOMENT)
        return [(self._running[done], self._outcome(done, self._running.pop(done))) for done in ready]

    def dismiss(self) -> None:
        busy = set(self._running.values())
        for actor in self._alive & busy:
            self._ray.kill(actor)
        self._cluster.spare += self._alive - busy
        self._alive.clear()

    def _outcome(self, done: Any, actor: Any) -> Outcome | None:
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(done)
            return outcome
        except errors.RayTaskError as error:  # not of the task: the work could not be loaded
            return Outcome(error=RuntimeError(f"A worker of the Ray cluster failed: {error}"))
        except errors.RayError:  # the actor or its machine died, or the result with it
            self._alive.discard(actor)
            self._ray.kill(actor)
            return None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps the handlers of signals as they are: Ray sets its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

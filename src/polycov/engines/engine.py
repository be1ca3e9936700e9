"""The engine of a command: who does its work. One process owns the folder on disk, and alone writes to it."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from polycov.engines.crew import share
from polycov.engines.helpers import Helpers
from polycov.engines.ray_cluster import RayCluster
from polycov.engines.work import PieceT, TaskT, Work
from polycov.errors import PolycovError
from polycov.system.structure import Structured


@dataclass(frozen=True)
class EngineOptions(Structured):
    """Who does the work: processes of this machine, or a cluster."""

    engine: Literal["local", "ray"] = "local"
    """local: processes of this machine. ray: the Ray cluster that RAY_ADDRESS names, or one that is started on this
    machine for the run."""
    jobs: int = 1
    """With --engine local: processes that share the work. Each has its share of the cores, and a GPU of its own if
    there are any."""
    task_cpus: float = 1.0
    """With --engine ray: CPUs for each task, which has as many threads."""
    task_gpus: float | None = None
    """With --engine ray: GPUs for each task; default: one if the cluster has any and the task computes on it."""
    retries: int = 3
    """How often a task is given to another process after one died on it."""

    def check(self) -> Self:
        """Returns the options if they make sense.

        Raises:
            PolycovError: otherwise.
        """
        if self.jobs < 1:
            raise PolycovError(f"Expected jobs to be at least 1, got {self.jobs}.")
        if self.engine == "ray" and self.jobs > 1:
            raise PolycovError("--jobs is for --engine local: Ray runs as many tasks as the cluster has room for.")
        if not 0 < self.task_cpus < 1e6 or not 0 <= (self.task_gpus or 0) < 1e6 or self.retries < 0:
            raise PolycovError(
                f"Expected task_cpus above 0, task_gpus and retries of 0 or more, got {self.task_cpus:g}, "
                f"{self.task_gpus or 0:g} and {self.retries}."
            )
        return self


class Engine:
    """Does work task by task, as a context manager: the processes it starts end with the block.

    Args:
        options: who works; by default this process.

    Attributes:
        shared: whether other processes than this one work.
        remote: whether they may be on other machines.
    """

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.options = (options or EngineOptions()).check()
        self.remote = self.options.engine == "ray"
        self.shared = self.remote or self.options.jobs > 1
        self._open = ExitStack()
        self._helpers: Helpers | None = None
        self._cluster: RayCluster | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()
        self._helpers = self._cluster = None

    def readers(self, workers: int) -> int:
        """Returns how many processes read images for one that computes: with Ray at most the CPUs it has to spare."""
        return min(workers, max(int(self.options.task_cpus) - 1, 0)) if self.remote else workers

    def run(self, work: Work[TaskT, PieceT], tasks: Iterable[TaskT]) -> Iterator[PieceT]:
        """Yields the pieces of all tasks; with several processes, in the order in which they finish.

        Args:
            work: what to do.
            tasks: taken one by one, as workers become free.

        Raises:
            MissingDependencyError: if Ray is not installed.
            PolycovError: if a task fails, or processes keep dying.
        """
        options = self.options
        if not self.shared:
            return work(tasks)
        if self.remote:
            if self._cluster is None:
                self._cluster = self._open.enter_context(RayCluster())
            return share(self._cluster.crew(work, options.task_cpus, options.task_gpus), tasks, options.retries)
        if self._helpers is None:
            self._helpers = self._open.enter_context(Helpers(options.jobs))
        return share(self._helpers.crew(work), tasks, options.retries)

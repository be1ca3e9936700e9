"""Handing tasks to workers that may die, and taking back what they made."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from polycov.engines.work import Outcome
from polycov.errors import PolycovError

Worker = Any  # anything hashable that a crew uses to name one


@dataclass(frozen=True)
class Handed:
    """A task and how many workers died on it."""

    task: Any
    deaths: int = 0


class Crew(ABC):
    """Workers that all know the same work."""

    @abstractmethod
    def hire(self) -> Hashable | None:
        """Starts another worker, if there is room for one; when it is ready, `wait` returns it."""

    @abstractmethod
    def hand(self, worker: Worker, task: Any) -> None:
        """Gives a task to a worker that has none."""

    @abstractmethod
    def wait(self) -> list[tuple[Worker, Outcome | None]]:
        """Waits a moment; returns the workers that are ready or done with their outcomes, None for those that died."""

    @abstractmethod
    def dismiss(self) -> None:
        """Ends the workers, unless they can be used for other work."""


class _Queue:
    """Tasks in their order, taken only when somebody is free; those whose worker died come first."""

    def __init__(self, tasks: Iterable[Any], retries: int) -> None:
        self._tasks, self._retries = iter(tasks), retries
        self._waiting: list[Handed] = []

    def holds(self, count: int) -> bool:
        """Whether at least so many tasks are left."""
        fresh = itertools.islice(self._tasks, max(count - len(self._waiting), 0))
        self._waiting += [Handed(task) for task in fresh]
        return len(self._waiting) >= count

    def take(self) -> Handed:
        return self._waiting.pop(0)

    def put_back(self, handed: Handed) -> None:
        if handed.deaths >= self._retries:
            raise PolycovError(
                f"{handed.deaths + 1} worker processes died one after another on the same task, perhaps for lack "
                "of memory. What is done is kept: run the same command again to resume."
            )
        self._waiting.insert(0, Handed(handed.task, handed.deaths + 1))


class _Shift:
    """Who is starting, idle or busy."""

    def __init__(self, crew: Crew, queue: _Queue, retries: int) -> None:
        self.crew, self.queue, self.retries = crew, queue, retries
        self.starting: set[Worker] = set()
        self.idle: list[Worker] = []
        self.busy: dict[Worker, Handed] = {}
        self._failed_starts = 0

    def hand_out(self) -> None:
        """Gives tasks to those who are idle, and hires while there are more tasks."""
        while self.idle and self.queue.holds(1):
            worker = self.idle.pop()
            self.busy[worker] = self.queue.take()
            self.crew.hand(worker, self.busy[worker].task)
        while self.queue.holds(len(self.starting) + 1) and (worker := self.crew.hire()) is not None:
            self.starting.add(worker)

    def note(self, worker: Worker, outcome: Outcome | None) -> None:
        """A worker is ready, done or dead."""
        if outcome is not None:
            self._failed_starts = 0
            self.idle.append(worker)
        elif worker in self.busy:
            self.queue.put_back(self.busy[worker])
        elif worker in self.starting:
            self._failed_starts += 1
        else:
            self.idle.remove(worker)
        self.starting.discard(worker)
        self.busy.pop(worker, None)
        if self._failed_starts > self.retries and not self.busy and not self.idle:
            raise PolycovError(f"{self._failed_starts} worker processes died one after another as they started.")


def share(crew: Crew, tasks: Iterable[Any], retries: int) -> Iterator[Any]:
    """Yields the pieces of all tasks, in the order in which workers finish them.

    Args:
        crew: who works.
        tasks: taken whenever a worker is free.
        retries: how often a task is given to another worker after one died on it.

    Raises:
        PolycovError: if workers keep dying, or a task fails; the first failure ends the work.
    """
    queue = _Queue(tasks, retries)
    shift = _Shift(crew, queue, retries)
    try:
        while queue.holds(1) or shift.busy:
            shift.hand_out()
            outcomes = crew.wait()
            for worker, outcome in outcomes:
                shift.note(worker, outcome)
            shift.hand_out()  # before the pieces are written, so that nobody waits for the disk
            for outcome in (outcome for _, outcome in outcomes if outcome is not None):
                if outcome.error is not None:
                    raise outcome.error
                yield from outcome.pieces
    finally:
        crew.dismiss()

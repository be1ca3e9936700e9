"""Work that any process can do: it is sent to a worker once, and then handed tasks."""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from polycov.errors import MissingDependencyError, NonFiniteError, PolycovError

TaskT = TypeVar("TaskT")
PieceT = TypeVar("PieceT")


class Work(ABC, Generic[TaskT, PieceT]):
    """What to do with a task. It writes no result to disk: its pieces go back to the process that owns the folder.

    It is pickled to reach other processes; what it computes with, such as a network on a device, is made there when the
    first task comes.

    Attributes:
        uses_gpu: whether it computes on a GPU where there is one.
    """

    uses_gpu = True

    @abstractmethod
    def __call__(self, tasks: Iterable[TaskT]) -> Iterator[PieceT]:
        """Yields the pieces of one task after another; a task may have several."""


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        pieces: all of its pieces.
        error: why there are none.
    """

    pieces: list[Any] = field(default_factory=list)
    error: Exception | None = None


def perform(work: Work[Any, Any], task: Any) -> Outcome:
    """Does one task; an error is part of the outcome, so that it reaches the owner with its own words."""
    try:
        return Outcome(list(work([task])))
    except Exception as error:
        return Outcome(error=_portable(error))


def _portable(error: Exception) -> Exception:
    """The error as one that every process can unpickle."""
    for kind in (NonFiniteError, MissingDependencyError, PolycovError):
        if isinstance(error, kind):
            return kind(str(error))
    if isinstance(error, OSError):
        return OSError(*error.args)
    if isinstance(error, MemoryError):
        return MemoryError(str(error))
    unknown = RuntimeError(f"{type(error).__name__}: {error}")
    unknown.add_note(traceback.format_exc())
    return unknown

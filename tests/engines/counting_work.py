"""Work for the tests of engines: it can fail, die once, or say where it was done."""

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from polycov.engines.work import Work
from polycov.errors import PolycovError


@dataclass
class Squares(Work[int, tuple[int, int]]):
    """Squares numbers; what is special about some of them is in the attributes."""

    folder: Path
    deadly: int = -1
    """Kills the process that gets it the first time, or always if ``always``."""
    always: bool = False
    wrong: int = -1
    uses_gpu = False

    def __call__(self, tasks: Iterable[int]) -> Iterator[tuple[int, int]]:
        for number in tasks:
            print("what is printed is no answer")
            mark = self.folder / f"died-{number}"
            if number == self.deadly and (self.always or not mark.exists()):
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if number == self.wrong:
                raise PolycovError(f"{number} is wrong")
            yield number, os.getpid()
            yield number * number, os.getpid()

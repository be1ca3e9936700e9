"""Images per second, and the CPU time that they take."""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

from polycov.progress import Progress, Task


@dataclass(frozen=True)
class Speed:
    """How fast something is.

    Attributes:
        per_second: images per second.
        cpu: CPU milliseconds per image, over all threads and processes. What else runs on the machine hardly
            changes it; where all cores are busy, it decides how many images pass per second.
    """

    per_second: float
    cpu: float


def measure_speed(job: Callable[[], object], images: int, times: int = 1) -> Speed:
    """Returns the speed of a job that handles this many images, run several times."""
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        job()
    count = times * images
    return Speed(count / (time.perf_counter() - begin), 1e3 * (time.process_time() - cpu) / count)


def _of_children() -> float:
    """The CPU seconds of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Clock(Progress):
    """Remembers when images were done, in the last task."""

    def task(self, description: str, total: int) -> Task:
        """Begins a task whose moments are kept."""
        self.moments = moments = list[tuple[float, float, int]]()
        self.children = _of_children()

        class Timed(Task):
            def update(self, completed: int, status: str = "") -> None:
                if completed > self.completed:
                    moments.append((time.perf_counter(), time.process_time(), completed))
                super().update(completed, status)

        return Timed(description, total)

    def speed(self, first: int) -> Speed:
        """Returns the speed after the first images."""
        later = [moment for moment in self.moments if moment[2] >= first]
        (begin, before, done), (end, after, all_done) = later[0], later[-1]
        reading = (_of_children() - self.children) / all_done  # by processes that have ended
        return Speed((all_done - done) / (end - begin), 1e3 * ((after - before) / (all_done - done) + reading))

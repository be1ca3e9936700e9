"""Running tasks to the end or until they are killed, and checking what became of them."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kills.dying import Answer, Request
from kills.tasks import Stage, Task, command


class Runner:
    """Runs commands in forks of one process, which is started here and ends with the block.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.stage, self.log = Stage(folder), folder / "changes"
        self._forks = subprocess.Popen(
            [sys.executable, "-m", "kills.dying"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        self.stage.fill(self.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._forks.communicate()

    def run(self, arguments: list[str], **options: Any) -> Answer:
        """Runs a command in a fork; options are those of `Request`."""
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(json.dumps(asdict(Request(arguments, str(self.log), **options))) + "\n")
        self._forks.stdin.flush()
        return Answer(**json.loads(self._forks.stdout.readline()))

    def run_fresh(self, arguments: list[str], seconds: float | None = None, number: int = 9) -> Answer:
        """Runs a command in a fresh interpreter."""
        begin = time.monotonic()
        with Path(f"{self.log}.out").open("wb") as out:
            process = subprocess.Popen(command(arguments), stdout=out, stderr=out, preexec_fn=_hear_interrupts)
            try:
                code = process.wait(seconds)
                return Answer(code, time.monotonic() - begin, None)
            except subprocess.TimeoutExpired:
                process.send_signal(number)
                sent = time.monotonic()
                code = process.wait(120)
                return Answer(code, time.monotonic() - begin, time.monotonic() - sent)

    @property
    def output(self) -> str:
        """The end of what the last command wrote."""
        return Path(f"{self.log}.out").read_text(errors="replace")[-1500:]


def _hear_interrupts() -> None:
    """In a process to be: a job in the background ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Trial:
    """A task, its undisturbed result, and what went wrong when it was disturbed.

    Attributes:
        runner: runs it.
        task: the task.
        kills: how many times it was killed or stopped.
        slowest: the longest time from a signal to the end.
        problems: a line each.
    """

    runner: Runner
    task: Task
    kills: int = 0
    slowest: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        stage = self.runner.stage
        stage.clear(self.task)
        answer = self.runner.run(stage.arguments(self.task.first))
        assert answer.code == 0, self.runner.output
        self.seconds, self.undisturbed = answer.seconds, stage.result()
        self.changes = self.runner.log.read_text().splitlines()

    def kill_around_every_change(self, after: tuple[bool, ...] = (False, True), every: int = 1) -> None:
        """Kills the task right before, and right after, each of its changes of the disk, or one of so many."""
        for number, path in list(enumerate(self.changes))[::every]:
            for is_after in after:
                what = f"killed right {'after' if is_after else 'before'} the change of {path}"
                with self._fresh_folder():
                    arguments = self.runner.stage.arguments(self.task.first)
                    answer = self.runner.run(arguments, change=number, after=is_after)
                self._check(answer.code == -9, what, f"ended with {answer.code}")
                self._check_resumed(what, fresh=False)

    def kill_at_random_moments(self, count: int, chance: random.Random, fresh: bool = True) -> None:
        """Kills the task at random moments, until that has happened so often, and resumes it, in fresh interpreters."""
        done = 0
        while done < count:
            answer, moment = self._disturb(chance, fresh, 9)
            if answer.code == -9:
                done += 1
                self._check_resumed(f"killed after {moment:.3f} s{' in a fresh interpreter' * fresh}", fresh)

    def stop_at_random_moments(self, count: int, chance: random.Random, fresh: bool = True, limit: float = 2.0) -> None:
        """Sends SIGINT and SIGTERM in turns: the task ends in time, leaves nothing unfinished, and resumes."""
        done = 0
        while done < count:
            number = (2, 15)[done % 2]
            answer, moment = self._disturb(chance, fresh, number)
            if answer.after is None or answer.code == 0:
                continue
            done += 1
            what = f"stopped by signal {number} after {moment:.3f} s"
            self.slowest = max(self.slowest, answer.after)
            ended = answer.code in (130, -number)  # the latter before it has begun
            self._check(ended, what, f"ended with {answer.code}: {self.runner.output}")
            self._check(answer.after <= limit, what, f"took {answer.after:.1f} s")
            self._check(not self.runner.stage.leftovers(), what, f"left {self.runner.stage.leftovers()}")
            self._check_resumed(what, fresh)

    def _disturb(self, chance: random.Random, fresh: bool, number: int) -> tuple[Answer, float]:
        """Starts the task and sends it a signal at a random moment."""
        arguments = self.runner.stage.arguments(self.task.first)
        with self._fresh_folder():
            if fresh:
                moment = chance.uniform(0.3, 1) * self.seconds_fresh  # before, it imports
                answer = self.runner.run_fresh(arguments, moment, number)
                if answer.after is None:
                    self.seconds_fresh = answer.seconds
                return answer, moment
            moment = chance.uniform(0, self.seconds)
            answer = self.runner.run(arguments, seconds=moment, number=number)
            if answer.after is None:  # the machine has less to do than before
                self.seconds = answer.seconds
            return answer, moment

    @cached_property
    def seconds_fresh(self) -> float:
        """How long the task takes in a fresh interpreter, where its result is the same."""
        self.runner.stage.clear(self.task)
        answer = self.runner.run_fresh(self.runner.stage.arguments(self.task.first))
        self._check_result("undisturbed in a fresh interpreter", answer)
        return answer.seconds

    @contextmanager
    def _fresh_folder(self) -> Iterator[None]:
        self.runner.stage.clear(self.task)
        yield
        if self.task.kept:
            self._check_kept()

    def _check_kept(self) -> None:
        """A file that was complete before is never replaced by a partial one."""
        path = self.runner.stage.work / self.task.kept
        earlier = (self.runner.stage.folder / self.task.before / self.task.kept).read_bytes()
        self._check(path.read_bytes() in (earlier, self.undisturbed[self.task.kept]), self.task.kept, "is partial")

    def _check_resumed(self, what: str, fresh: bool) -> None:
        self.kills += 1
        arguments = self.runner.stage.resume(self.task)
        self._check_result(what, self.runner.run_fresh(arguments) if fresh else self.runner.run(arguments))

    def _check_result(self, what: str, answer: Answer) -> None:
        """The command has ended well, with the result of an undisturbed one, and nothing else."""
        if answer.code:
            self._check(False, what, f"ended with {answer.code}: {self.runner.output}")
            return
        result, expected, left = self.runner.stage.result(), self.undisturbed, self.runner.stage.leftovers()
        differing = [name for name in {**result, **expected} if result.get(name) != expected.get(name)]
        self._check(not differing, what, f"differs in {', '.join(differing)}")
        self._check(not left, what, f"left {left}")

    def _check(self, holds: bool, what: str, problem: str) -> None:
        if not holds:
            self.problems.append(f"{self.task.name}, {what}: {problem}")

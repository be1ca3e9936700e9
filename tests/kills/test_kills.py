"""Every command, killed before each of its renames. ``make kills`` kills them at many more moments."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kills.runner import Runner, Trial
from kills.tasks import TASKS, Task

EVERY = {"compare": 7}  # most of its files are figures, which take seconds
SHORTER = {"--epochs": "1", "--seeds": "1", "--shard-size": "20"}


def shorter(task: Task) -> Task:
    """A task with less to do."""
    pairs = zip(("", *task.first), task.first, strict=False)
    return replace(task, first=tuple(SHORTER.get(flag, argument) for flag, argument in pairs))


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("kills")) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [("train", "train frozen", "extraction"), ("compare", "embed RUN", "embed METHOD", "export")]
)
def test_a_command_killed_before_any_rename_resumes_to_the_same_result(runner: Runner, names: tuple[str, ...]) -> None:
    problems, kills = [], 0
    for name in names:
        trial = Trial(runner, shorter(TASKS[name]))
        trial.kill_around_every_change(after=(False,), every=EVERY.get(name, 1))
        problems += trial.problems
        kills += trial.kills
    assert not problems
    assert kills >= 15

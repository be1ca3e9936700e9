import logging
from types import SimpleNamespace

import pytest

import polycov.progress
from polycov.progress import SILENT, LogProgress, Progress, Task, duration
from polycov.system.tables import Table


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(polycov.progress, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.mark.parametrize("progress", [SILENT, Progress()])
def test_progress_is_silent(progress: Progress, capsys: pytest.CaptureFixture[str]) -> None:
    progress.message("hello")
    with progress.task("working", 3) as task:
        task.advance()
        task.advance(2, "loss 0.5")
        task.show(Table(("a",), [(1,)]))
        assert (task.description, task.total, task.completed) == ("working", 3, 3)
        task.update(1)
        assert task.completed == 1
    assert capsys.readouterr() == ("", "")


def test_a_warning_is_a_message_or_where_nobody_listens_a_python_warning() -> None:
    lines: list[str] = []
    LogProgress(lines.append).warn("smaller")
    assert lines == ["note: smaller"]
    with pytest.warns(UserWarning, match="^smaller$"):
        SILENT.warn("smaller")
    Progress().warn("smaller")  # a process of a launcher that is to say nothing


def test_errors_pass_through_a_task() -> None:
    for progress in (SILENT, LogProgress(lambda line: None, seconds=0)):
        with pytest.raises(KeyError), progress.task("working", 3):
            raise KeyError


def test_lines_come_at_intervals_with_an_estimate_and_the_status(clock: Clock) -> None:
    lines: list[str] = []
    with LogProgress(lines.append, seconds=30).task("training", 10) as task:
        for i in range(10):
            clock.now += 20
            task.advance(status=f"loss {i}" if i != 3 else "")
    assert lines == [
        "training: 2 of 10 after 40 s, 2.7 min left, loss 1",
        "training: 4 of 10 after 80 s, 2.0 min left, loss 2",  # the last status there was
        "training: 6 of 10 after 2.0 min, 80 s left, loss 5",
        "training: 8 of 10 after 2.7 min, 40 s left, loss 7",
        "training: 10 of 10 after 3.3 min, loss 9",
    ]


def test_short_tasks_write_nothing(clock: Clock) -> None:
    lines: list[str] = []
    with LogProgress(lines.append).task("checking", 3) as task:
        for _ in range(3):
            clock.now += 9
            task.advance()
    assert lines == []


def test_steps_of_an_earlier_run_do_not_count_in_the_estimate(clock: Clock) -> None:
    lines: list[str] = []
    with LogProgress(lines.append, seconds=30).task("training", 1000) as task:
        clock.now += 40
        task.update(500)
        clock.now += 50
        task.update(600)
    assert lines == [
        "training: 500 of 1000 after 40 s",
        "training: 600 of 1000 after 90 s, 3.3 min left",
        "training: 600 of 1000 after 90 s, 3.3 min left",
    ]


def test_an_interrupted_task_says_how_far_it_came(clock: Clock) -> None:
    lines: list[str] = []
    task = LogProgress(lines.append, seconds=30).task("embedding", 4)
    task.advance()
    clock.now += 45
    with pytest.raises(KeyboardInterrupt), task:
        raise KeyboardInterrupt
    assert lines == ["embedding: 1 of 4 after 45 s, 2.2 min left"]


def test_a_task_without_steps(clock: Clock) -> None:
    lines: list[str] = []
    with LogProgress(lines.append, seconds=30).task("waiting", 4):
        clock.now += 45
    assert lines == ["waiting: 0 of 4 after 45 s"]


def test_messages_go_to_the_logger_unless_told_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "polycov"):
        LogProgress().message("100% of 3 images")
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("polycov", "INFO", "100% of 3 images")
    ]


def test_tables_are_accepted(clock: Clock) -> None:
    task = LogProgress(pytest.fail).task("comparing", 2)
    assert isinstance(task, Task)
    task.show(Table(("a",), [(1,)]))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (99.4, "99 s"),
        (100, "1.7 min"),
        (5999, "100.0 min"),
        (6000, "1.7 h"),
        (90000, "25.0 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text

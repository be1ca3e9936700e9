import os

import pytest

from polycov.comparing.launcher import LAUNCHER_VARIABLES, launcher_rank, outside_process_group, with_launcher
from polycov.comparing.options import CompareOptions
from polycov.engines.engine import EngineOptions
from polycov.errors import PolycovError
from polycov.progress import SILENT, LogProgress


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of four processes, two of them on this machine."""
    values = ("0", "0", "4", "2", "first", "29500")
    for name, value in zip(LAUNCHER_VARIABLES, values, strict=True):
        monkeypatch.setenv(name, value)


def test_helpers_take_the_place_of_the_processes_on_this_machine() -> None:
    lines: list[str] = []
    assert with_launcher(CompareOptions(), LogProgress(lines.append)).engine.jobs == 2
    assert lines == ["note: processes on other machines do nothing; to share among machines use --engine ray"]
    more = CompareOptions(engine=EngineOptions(jobs=3))
    assert with_launcher(more, SILENT).engine.jobs == 3
    ray = CompareOptions(engine=EngineOptions(engine="ray"))
    assert with_launcher(ray, SILENT) == ray


def test_the_other_processes_own_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert launcher_rank() == 1
    with pytest.raises(PolycovError, match="belongs to one process: call it where RANK is 0"):
        with_launcher(CompareOptions(), SILENT)


def test_settings_are_trained_outside_the_group() -> None:
    before = dict(os.environ)
    with outside_process_group():
        assert not set(LAUNCHER_VARIABLES) & set(os.environ)
    assert dict(os.environ) == before

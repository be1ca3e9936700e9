"""Engines on work that is quick, wrong or deadly."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.counting_work import Squares
from polycov.engines.engine import Engine, EngineOptions
from polycov.engines.helpers import helper_environment
from polycov.errors import MissingDependencyError, PolycovError


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers import the work from the folder of the tests."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def expected(numbers: range) -> list[int]:
    return sorted([*numbers, *(number * number for number in numbers)])


def test_alone_it_works_in_this_process_and_in_order(tmp_path: Path) -> None:
    with Engine() as engine:
        found = list(engine.run(Squares(tmp_path), range(4)))
    assert found == [(value, os.getpid()) for number in range(4) for value in (number, number * number)]


@pytest.mark.slow
def test_helpers_share_tasks_survive_a_death_and_do_other_work(tmp_path: Path) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(12):
            taken.append(number)
            yield number

    with Engine(EngineOptions(jobs=2)) as engine:
        pieces = engine.run(Squares(tmp_path, deadly=7), tasks())
        found = [next(pieces)]
        assert len(taken) < 6  # they are taken one by one
        found += pieces
        assert sorted(value for value, _ in found) == expected(range(12))
        pids = {pid for _, pid in found}
        assert os.getpid() not in pids
        assert len(pids) >= 2
        again = list(engine.run(Squares(tmp_path), range(3)))
        assert sorted(value for value, _ in again) == expected(range(3))
        assert {pid for _, pid in again} <= pids  # the same processes
        with pytest.raises(PolycovError, match="2 is wrong"):
            list(engine.run(Squares(tmp_path, wrong=2), range(3)))
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_a_task_that_kills_every_worker_ends_the_work(tmp_path: Path) -> None:
    sentence = "2 worker processes died one after another on the same task"
    with (
        Engine(EngineOptions(jobs=2, retries=1)) as engine,
        pytest.raises(PolycovError, match=sentence),
    ):
        list(engine.run(Squares(tmp_path, deadly=1, always=True), range(3)))


@pytest.mark.slow
def test_what_helpers_still_answer_to_earlier_work_is_no_answer_to_the_next(tmp_path: Path) -> None:
    with Engine(EngineOptions(jobs=2)) as engine:
        for _ in range(3):
            pieces = engine.run(Squares(tmp_path), range(100, 10**9))
            next(pieces)
            pieces.close()  # type: ignore[attr-defined]  # both helpers have a task, or are starting
            found = engine.run(Squares(tmp_path), range(5))
            assert sorted(value for value, _ in found) == expected(range(5))


OWNER = """
import sys, time
from pathlib import Path
from engines.counting_work import Squares
from polycov.engines.engine import Engine, EngineOptions
with Engine(EngineOptions(jobs=2)) as engine:
    for _, pid in engine.run(Squares(Path(sys.argv[1])), range(10**9)):
        print(pid, flush=True)
        time.sleep(0.2)
"""


@pytest.mark.slow
def test_helpers_stop_when_their_owner_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = {int(owner.stdout.readline()) for _ in range(5)}
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    owner.stdout.close()


def test_each_helper_has_its_share_of_the_cores_and_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES" not in helper_environment(0, 2)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    found = [helper_environment(number, 3) for number in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["0", "1", "0"]
    assert {one["OMP_NUM_THREADS"] for one in found} == {"2"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert helper_environment(1, 2)["CUDA_VISIBLE_DEVICES"] == "6"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (EngineOptions(jobs=0), "Expected jobs to be at least 1, got 0"),
        (EngineOptions(engine="ray", jobs=2), "--jobs is for --engine local"),
        (EngineOptions(task_cpus=0.0), "Expected task_cpus above 0"),
        (EngineOptions(task_gpus=-1.0), "task_gpus and retries of 0 or more"),
    ],
)
def test_options_that_make_no_sense(options: EngineOptions, sentence: str) -> None:
    with pytest.raises(PolycovError, match=sentence):
        Engine(options)


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        Engine(EngineOptions(engine="ray")) as engine,
        pytest.raises(MissingDependencyError, match=r"pip install 'polycov\[ray\]'"),
    ):
        list(engine.run(Squares(tmp_path), range(3)))

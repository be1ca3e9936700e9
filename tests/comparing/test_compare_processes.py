"""Comparisons by several processes, and what remains of one that is killed or stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polycov.comparing.compare import compare
from small_comparison import TINY, flags, results


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
def test_a_killed_comparison_resumes_and_jobs_share_it(forest: Path, tmp_path: Path) -> None:
    compare(forest, out=tmp_path / "whole", seeds=3, **TINY)
    broken = tmp_path / "broken"
    command = [sys.executable, "-m", "polycov", "compare", str(forest), *flags(), "--seeds", "3", "--out", str(broken)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(results(broken)) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = results(broken)
    assert 5 <= len(done) < 24
    subprocess.run([*command, "--jobs", "2"], check=True, stdout=subprocess.DEVNULL, timeout=240)
    assert results(broken) == results(tmp_path / "whole")  # a random backbone is the same in every process


@pytest.mark.slow
def test_the_processes_of_accelerate_launch_share_a_comparison(forest: Path, tmp_path: Path) -> None:
    options = flags(methods=("average", "gem", "ipccp-ts"), seeds=1, epochs=1, head="train", out=tmp_path / "cmp")
    launcher = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    launcher += ["--dynamo_backend", "no", "--main_process_port", "0", "-m", "polycov"]
    command = [sys.executable, "-m", "accelerate.commands.launch", *launcher, "compare", str(forest), *options]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(results(tmp_path / "cmp")) == 4
    assert done.stdout.count("report.html") == 1  # one of them speaks


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_the_first_process_stops_its_helpers(forest: Path, tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "polycov", "compare", str(forest), *flags(), "--seeds", "400", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "cmp")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while len(results(tmp_path / "cmp")) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    where = tmp_path / "cmp"
    sentence = f"polycov: stopped. Run the same command again to resume the comparison in {where}."
    assert (process.returncode, errors.decode().strip()) == (130, sentence)
    done = len(results(tmp_path / "cmp"))
    time.sleep(1.0)
    assert 5 <= len(results(tmp_path / "cmp")) == done < 3200

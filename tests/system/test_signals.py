import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from polycov.system.signals import exit_when_stuck, stop_on_signals, uninterrupted

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@BOTH
def test_a_signal_is_a_keyboard_interrupt_and_handlers_are_restored(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stop_on_signals():
        send(number)
    assert signal.getsignal(number) is before


@BOTH
def test_a_block_is_finished_first(number: int) -> None:
    done = []

    @stop_on_signals()
    def work() -> None:
        with uninterrupted():
            with uninterrupted():
                send(number)
                done.append("inner")
            done.append("outer")
        done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inner", "outer"]
    with stop_on_signals(), uninterrupted():  # nothing is left of the signal
        pass


def test_a_swallowed_signal_is_remembered_and_errors_are_its_consequence() -> None:
    def work() -> None:
        with stop_on_signals() as stop:
            with suppress(KeyboardInterrupt):
                send(signal.SIGTERM)
            assert stop.received
            raise RuntimeError("a worker is gone")

    with pytest.raises(KeyboardInterrupt) as stopped:
        work()
    assert isinstance(stopped.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError), stop_on_signals():
        raise RuntimeError("without a signal")


def test_inner_blocks_leave_the_handlers_to_the_outer_one() -> None:
    with stop_on_signals() as outer:
        with stop_on_signals() as inner:
            assert inner is outer
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            send(signal.SIGINT)
        assert not stop.received
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_change_no_handlers() -> None:
    seen: list[object] = []

    def work() -> None:
        with stop_on_signals(), exit_when_stuck(), uninterrupted():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def start(script: str) -> "subprocess.Popen[str]":
    """Starts a script, and returns when it says that it is ready."""
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_program_that_is_stuck_in_c_ends() -> None:
    process = start(
        "import hashlib\n"
        "from polycov.system.signals import *\n"
        "with stop_on_signals() as stop, exit_when_stuck():\n"
        "    while True:\n"
        "        try:\n"
        "            print('ready', flush=True)\n"
        "            hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)\n"  # minutes in one call
        "        except KeyboardInterrupt:\n"
        "            stop.received = False\n"
    )
    try:
        for _ in range(120):
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGTERM)
            time.sleep(1)
        _, errors = process.communicate(timeout=1)
    finally:
        process.kill()
    assert (process.returncode, errors.startswith("polycov: stopped.")) == (130, True)


def test_a_signal_to_a_fork_is_not_one_to_its_parent() -> None:
    process = start(
        "import os, signal, time\n"
        "from polycov.system.signals import *\n"
        "with stop_on_signals(), exit_when_stuck():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os.waitpid(child, 0)\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(2 * PATIENCE)\n"
        "print('still here')\n"
    )
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, output) == (0, "still here\n")


def test_a_process_stops_when_its_parent_is_killed() -> None:
    child = (
        "import os, sys, time, pathlib\n"
        "from polycov.system.signals import *\n"
        "try:\n"
        "    with stop_on_signals():\n"
        "        stop_with(os.getppid())\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(600)\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped', flush=True)\n"
    )
    parent = start(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n")
    parent.kill()
    output, _ = parent.communicate(timeout=120)  # the child holds the other end
    assert output == "stopped\n"

"""Ctrl-C and SIGTERM: both stop the work with a KeyboardInterrupt, at a moment when nothing is lost."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 1.0  # seconds that a call into C may go on after a signal
EXIT_CODE = 130


class StopRequest:
    """Whether this process was asked to stop.

    Attributes:
        received: whether a signal came; it stays, in case the exception is swallowed.
        protected: how many blocks are running that no signal may break into.
    """

    def __init__(self) -> None:
        self.received = False
        self.protected = 0
        self._depth = 0

    def check(self) -> None:
        """Raises KeyboardInterrupt if a signal came."""
        if self.received:
            raise KeyboardInterrupt

    def _handle(self, *_: object) -> None:
        self.received = True
        if not self.protected:
            raise KeyboardInterrupt

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handles signals within the block; in the main thread, the only one that may."""
        if self._depth or threading.current_thread() is not threading.main_thread():
            yield  # listening already
            return
        self.received, self._depth = False, 1
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores some
        before = {number: signal.signal(number, self._handle) for number in heard}
        try:
            yield
        except Exception as error:
            if self.received:  # only a consequence
                raise KeyboardInterrupt from error
            raise
        finally:
            self._depth = 0
            for number, handler in before.items():
                signal.signal(number, handler)


_request = StopRequest()


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turns Ctrl-C and SIGTERM into KeyboardInterrupt within the block.

    Example:
        >>> with stop_on_signals() as stop:
        ...     stop.received
        False
    """
    with _request.listening():
        yield _request


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A block that `stop_on_signals` does not break into: a signal that comes takes effect at its end."""
    _request.protected += 1
    try:
        yield
    finally:
        _request.protected -= 1
    if not _request.protected:
        _request.check()


def stop_with(parent: int) -> None:
    """Sends this process SIGTERM once the process that started it is gone.

    Args:
        parent: number of that process.
    """
    _in_background(lambda: _watch(parent))


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def exit_when_stuck() -> Iterator[None]:
    """Ends this process after a signal within the block if a long call into C keeps Python from handling it.

    For programs, within `stop_on_signals`. A factorisation may take minutes, and cannot be interrupted; what is on disk
    survives every kill, so nothing more is lost than that call.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _watched.append(writer)
    _in_background(lambda: _exit_if_unhandled(reader))
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        _watched.remove(writer)
        os.close(writer)


_watched: list[int] = []


def _unwatch() -> None:
    """In a child: a signal to it is not one to its parent."""
    if _watched:
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unwatch)


def _exit_if_unhandled(reader: int) -> None:
    while numbers := os.read(reader, 64):  # nothing once the other end is closed
        if set(numbers) & {int(number) for number in SIGNALS}:
            time.sleep(PATIENCE)
            if not _request.received:
                _exit_now()
    os.close(reader)


def _exit_now() -> NoReturn:
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h")  # progress bars hide the cursor
    os.write(2, b"polycov: stopped. Run the same command again, or resume the run.\n")
    os._exit(EXIT_CODE)


def _in_background(work: Callable[[], object]) -> None:
    threading.Thread(target=work, daemon=True).start()

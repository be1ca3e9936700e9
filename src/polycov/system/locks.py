"""Locks, which the system releases when the process that holds them dies."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from polycov.errors import PolycovError


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Yields whether a lock was free, and holds it if so. The system releases it when the process dies."""
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    with _released_without_trace(lock, path):
        yield True


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Waits for a lock and holds it. The system releases it when the process dies."""
    lock = FileLock(path)
    lock.acquire()
    with _released_without_trace(lock, path):
        yield


@contextmanager
def only_writer(path: Path, folder: Path) -> Iterator[None]:
    """Holds the lock of the one process that writes a folder, or says who does.

    Args:
        path: path of the lock.
        folder: folder that it guards.

    Raises:
        PolycovError: if another process holds it; the message names the process.
    """
    with try_lock(path) as acquired:
        if not acquired:
            raise PolycovError(f"{str(folder)!r} is being written by {_owner(path)}. Wait until it is done.")
        with suppress(OSError):  # Windows cannot write to a locked file
            path.write_text(f"{os.getpid()} {socket.gethostname()}", encoding="utf-8")
        yield


def _owner(path: Path) -> str:
    """Who holds a lock, in words."""
    try:
        number, _, machine = path.read_text(encoding="utf-8").partition(" ")
    except (OSError, UnicodeDecodeError):
        return "another process"
    if not number.isdecimal():
        return "another process"
    return f"process {number}" + (f" on {machine}" if machine not in ("", socket.gethostname()) else "")


@contextmanager
def _released_without_trace(lock: BaseFileLock, path: Path) -> Iterator[None]:
    """Releases a lock at the end of the block and removes its file, which a killed process may have left too."""
    try:
        yield
    finally:
        try:
            with suppress(OSError):  # Windows cannot remove a locked file
                path.unlink()  # safe: filelock checks that the file it locked has not been removed
        finally:
            lock.release()


def hold_in_use(path: Path) -> int:
    """Marks a folder as in use by a lock on a file in it, until the returned descriptor is closed or the process ends.

    The file and its folder are created if they are missing, and the time of the file is set to now; a link in its
    place is replaced. Who removes the folder must hold `folder_lock` of the file; a folder removed meanwhile is created
    again. Windows has no such lock (−1).
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):
            if path.is_symlink():
                path.unlink()
            path.touch()
        try:
            import fcntl

            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would never open
        except (ImportError, PermissionError):
            return -1
        except FileNotFoundError:
            continue
        with suppress(OSError):  # the file system knows no locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)


@contextmanager
def folder_lock(folder: Path, *, wait: bool) -> Iterator[tuple[bool, int]]:
    """Waits for a shared lock on a folder or file, or tries for an exclusive one; yields whether it was acquired, and
    a descriptor.

    Windows has no such lock, and no descriptor (−1), but it does not remove a file in use either.
    """
    try:
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
    except (ImportError, PermissionError):
        yield os.name == "nt", -1
        return
    try:
        locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process has it, or the file system knows no locks
            locked = False
        yield locked, descriptor
    finally:
        os.close(descriptor)

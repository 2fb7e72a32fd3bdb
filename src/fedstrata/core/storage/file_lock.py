"""Locks between processes, on every system. A lock ends with the process that has it, however that ends.

What is locked is a file of its own: Windows cannot lock a folder, and NFS only lets those lock who may write. The file
stays when the lock ends: if it were removed, two processes could hold two locks of one name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from portalocker import AlreadyLocked, LockException, LockFlags, lock


def take_lock(path: Path) -> int | None:
    """Lock a file for this process alone; it is made if it is not there.

    Returns
    -------
    int or None
        The open file, with which the lock is closed; None if another process has the lock.

    Raises
    ------
    OSError
        If the file cannot be written, or lies where there are no locks.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # others may look, if the folder lets them
    try:
        if _lock(handle) or _lock_again(handle):
            return handle
    except LockException as error:
        os.close(handle)
        raise OSError(f"{path} cannot be locked: {error}") from error
    os.close(handle)
    return None


def _lock(handle: int) -> bool:
    try:
        lock(handle, LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING)
    except AlreadyLocked:
        return False
    return True


def _lock_again(handle: int) -> bool:
    """Try once more, a little later: somebody may only have looked (`is_locked`)."""
    time.sleep(0.05)
    return _lock(handle)


@contextmanager
def in_turn(path: Path, patience: float = 30.0) -> Iterator[None]:
    """Do something short while no other process does the same: wait for its lock, for so many seconds.

    Raises
    ------
    OSError
        As `take_lock`, and if another process keeps the lock.
    """
    end = time.monotonic() + patience
    while (handle := take_lock(path)) is None:
        if time.monotonic() > end:
            raise OSError(f"{path} is held by another process; try again")
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Say whether a process has locked a file. To look shares the lock for an instant, and needs no right to write."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        lock(handle, LockFlags.SHARED | LockFlags.NON_BLOCKING)
    except AlreadyLocked:
        return True
    except LockException:
        return False  # it lies where there are no locks
    finally:
        os.close(handle)
    return False

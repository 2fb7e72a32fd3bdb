"""Locks between processes: one holds, others see it, and nothing has to be put away after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from portalocker import AlreadyLocked

from fedstrata.core.storage import file_lock
from fedstrata.core.storage.file_lock import is_locked, take_lock

HOLD = """
import sys
from pathlib import Path
from fedstrata.core.storage.file_lock import take_lock
handle = take_lock(Path(sys.argv[1]))
print("locked", flush=True)
input()
"""


@pytest.fixture
def held(tmp_path):
    """A file that another process has locked, and that process."""
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline().strip() == b"locked"
        yield path, other
        other.kill()


def test_a_lock_ends_with_the_process_that_has_it_even_when_it_is_killed(held):
    path, other = held
    assert is_locked(path)
    assert take_lock(path) is None
    other.kill()
    other.wait()
    assert not is_locked(path)
    handle = take_lock(path)
    assert handle is not None
    os.close(handle)


def test_children_do_not_keep_a_lock_that_their_parent_gave_up(tmp_path):
    path = tmp_path / "lock"
    handle = take_lock(path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        os.close(handle)
        assert not is_locked(path)
        child.communicate(b"\n")


def test_a_lock_excludes_in_one_process_too(tmp_path):
    path = tmp_path / "lock"
    handle = take_lock(path)
    assert take_lock(path) is None
    assert is_locked(path)
    os.close(handle)
    assert path.exists(), "a lock file that goes away could be locked twice"
    assert not is_locked(path)


@pytest.mark.parametrize(("looks", "taken"), [(1, True), (1000, False)])
def test_somebody_who_looks_keeps_nobody_from_locking(tmp_path, monkeypatch, looks, taken):
    """To look shares the lock for an instant: whoever locks in that instant tries again."""
    plain, tries = file_lock.lock, []

    def looked_at(handle, flags):
        tries.append(flags)
        if len(tries) <= looks:
            raise AlreadyLocked("somebody looks")
        plain(handle, flags)

    monkeypatch.setattr(file_lock, "lock", looked_at)
    handle = take_lock(tmp_path / "lock")
    assert (handle is not None) == taken
    assert 1 < len(tries) < 10
    if handle is not None:
        os.close(handle)


def test_looking_makes_no_file_and_needs_no_right_to_write(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    assert not is_locked(path)
    assert not path.exists()
    handle = take_lock(path)
    plain = os.open

    def without_rights(file, flags, *rest):
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT) and Path(file) == path:
            raise PermissionError(13, "Permission denied", str(file))
        return plain(file, flags, *rest)

    monkeypatch.setattr(os, "open", without_rights)
    assert is_locked(path)
    os.close(handle)

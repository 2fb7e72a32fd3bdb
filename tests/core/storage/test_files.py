"""A file is whole or as it was before, and what was written is on disk."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from fedstrata.core.storage.files import sync_folder, write_atomically


@pytest.fixture
def calls(monkeypatch):
    """What is asked of the system, in order."""
    seen, replace = [], os.replace

    def fsync(handle):
        seen.append("sync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "sync file")

    def replaced(*paths):
        seen.append("replace")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replaced)
    return seen


def test_content_is_safe_before_the_name_is_and_the_name_before_anything_else(tmp_path, calls):
    write_atomically(tmp_path / "a.json", b"new")
    assert calls == ["sync file", "replace", "sync folder"]
    assert (tmp_path / "a.json").read_bytes() == b"new"


def test_who_writes_many_files_syncs_their_folder_once(tmp_path, calls):
    for name in ("a", "b"):
        write_atomically(tmp_path / name, b"new", sync=False)
    sync_folder(tmp_path)
    assert calls == ["sync file", "replace"] * 2 + ["sync folder"]


def test_a_disk_that_refuses_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_atomically(path, b"old")

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]

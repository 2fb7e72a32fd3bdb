"""Files that are whole, or as they were before, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedstrata.core.errors import RequestError

PART = ".part"  # how a file's name ends while it is written; a kill leaves it, so who lists a folder skips such names


def write_atomically(path: Path, *content: bytes | memoryview, sync: bool = True) -> None:
    """Write a file so that it is either whole or as it was before, also after the machine lost its power.

    Its content may come in pieces, none of which is copied. Without `sync`, only the content is safe on disk: who
    writes many files calls `sync_folder` once for all of them.
    """
    part = path.with_name(path.name + PART)
    try:
        with part.open("wb") as file:
            for piece in content:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder safe on disk. Windows has no way to ask for that, and opens no folder."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it, so that a power cut does not take their names away with all that is in them."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_folder(path.parent, mode)
    path.mkdir(mode=mode, exist_ok=True)
    sync_folder(path.parent)


def disk_is_full(error: BaseException) -> bool:
    """Say whether an error is that of a disk, or a user's share of it, which has no room."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Say what to do when the disk refuses; what was written before stays valid."""
    try:
        yield
    except OSError as error:
        why = "the disk is full" if disk_is_full(error) else str(error)
        raise RequestError(f"cannot write to {path}: {why}. What was saved before is still valid") from error

"""Files that are whole, or as they were before, whatever happens while they are written."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file so that it is either whole or as it was before, also after the machine lost its power.

    Without `sync`, only the content is safe on disk: who writes many files calls `sync_folder` once for all of them.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
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

"""Memory that the processes of a run share: samples, the model on its way down, updates on their way up.

It is a file without a name, in memory where that has room for it: whatever happens to a process, nothing is left.
A second such file, in the folder for temporary files, takes what has no room in memory: containers often have little.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

import numpy as np

from fedstrata.core.errors import FedstrataError

Arrays = Mapping[str, np.ndarray]
Place = tuple[int, int, str, tuple[int, ...]]  # where an array lies: which file, offset, type, shape
ALIGNED = 64
MEMORY = "/dev/shm"
HERE, ON_DISK = 0, 1  # the two files
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_OFFERED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)  # file systems that cannot reserve room


class NoRoomError(FedstrataError):
    """What processes are to share fits nowhere."""


class SharedFiles:
    """A file in memory, and one on disk for what has no room there; both disappear with the last who has them open."""

    def __init__(self) -> None:
        in_memory = MEMORY if os.path.isdir(MEMORY) else None
        self._files = [_unnamed(in_memory), _unnamed(None)]

    @property
    def numbers(self) -> tuple[int, ...]:
        """As the system knows them, in this process and in those that inherit them."""
        return tuple(file.fileno() for file in self._files)

    def close(self) -> None:
        """Leave them."""
        for file in self._files:
            file.close()


class Region:
    """One end of shared files, mapped as far as they reach."""

    def __init__(self, files: Sequence[int]):
        self._files = files
        self._maps: list[mmap.mmap | bytes] = [b"" for _ in files]
        self.on_disk = False  # whether anything had no room in memory

    def put(self, arrays: Arrays, start: int = 0) -> tuple[dict[str, Place], int]:
        """Write arrays; say where, and where the next ones may begin."""
        offsets, end = lay_out(arrays, start)
        file = self._make_room(end)
        layout = {name: (file, offsets[name], str(array.dtype), array.shape) for name, array in arrays.items()}
        for name, array in arrays.items():
            self.view(layout[name])[...] = array
        return layout, end

    def _make_room(self, size: int) -> int:
        """Return a file that holds so many bytes: the one in memory, or where that is full, the other from then on."""
        if not self.on_disk and _reserve(self._files[HERE], size, in_memory=True):
            return HERE
        self.on_disk = True
        if not _reserve(self._files[ON_DISK], size):
            raise NoRoomError(
                f"neither {MEMORY} nor {tempfile.gettempdir()} has room for {size / 1e6:.0f} MB that worker processes "
                "share; make room (in Docker with --shm-size), let TMPDIR name a folder that has some, or use "
                "engine.workers = 1"
            )
        return ON_DISK

    def view(self, place: Place) -> np.ndarray:
        """Return an array without copying it."""
        file, start, dtype, shape = place
        self.on_disk |= file == ON_DISK
        count = int(np.prod(shape))
        if start + count * np.dtype(dtype).itemsize > len(self._maps[file]):
            self._maps[file] = mmap.mmap(self._files[file], os.fstat(self._files[file]).st_size)
        return np.frombuffer(self._maps[file], dtype=dtype, count=count, offset=start).reshape(shape)

    def take(self, layout: Mapping[str, Place]) -> dict[str, np.ndarray]:
        """Copy arrays out."""
        return {name: self.view(place).copy() for name, place in layout.items()}


def _unnamed(folder: str | None) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def lay_out(arrays: Arrays, start: int = 0) -> tuple[dict[str, int], int]:
    """Say where arrays begin one after another, and where the next one would."""
    offsets = {}
    for name, array in arrays.items():
        offsets[name] = start
        start = -(-(start + array.nbytes) // ALIGNED) * ALIGNED
    return offsets, start


def _reserve(file: int, size: int, in_memory: bool = False) -> bool:
    """Make a file so large that all of it can be written; False where there is no room.

    To make it longer would not do: writing to what has no room then ends the process, with "Bus error" at best.
    """
    has, size = os.fstat(file).st_size, max(size, mmap.PAGESIZE)
    if size <= has:
        return True
    if in_memory and os.path.isdir(MEMORY) and shutil.disk_usage(MEMORY).free <= 2 * (size - has):
        return False  # others need memory too
    try:
        if not _allocate(file, has, size - has):
            os.ftruncate(file, size)
    except OSError as error:
        if error.errno in NO_ROOM:
            return False
        raise
    return True


def _allocate(file: int, start: int, size: int) -> bool:
    """Reserve room in a file; False where a system or file system does not offer that."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(file, start, size)
    except OSError as error:
        if error.errno in NOT_OFFERED:
            return False
        raise
    return True

"""Memory that the processes of a run share: samples, the model on its way down, updates on their way up.

It is a file without a name, in memory where that has room for it: whatever happens to a process, nothing is left.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import IO

import numpy as np

Arrays = Mapping[str, np.ndarray]
Place = tuple[int, str, tuple[int, ...]]  # where an array lies: offset, type, shape
ALIGNED = 64


def unnamed(size: int = 0) -> IO[bytes]:
    """Return a file, for so many bytes, that disappears with the last process that has it open."""
    in_memory = os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 2 * size
    return tempfile.TemporaryFile(dir="/dev/shm" if in_memory else None)


def lay_out(arrays: Arrays, start: int = 0) -> tuple[dict[str, Place], int]:
    """Say where arrays lie one after another, and where the next one would."""
    layout = {}
    for name, array in arrays.items():
        layout[name] = (start, str(array.dtype), array.shape)
        start = -(-(start + array.nbytes) // ALIGNED) * ALIGNED
    return layout, start


class Region:
    """One end of a shared file, mapped as far as it reaches."""

    def __init__(self, file: int):
        self._file = file
        self._map: mmap.mmap | bytes = b""

    def reach(self, size: int) -> None:
        """Make sure that so many bytes are there and mapped."""
        if size <= len(self._map):
            return
        if os.fstat(self._file).st_size < size:
            os.ftruncate(self._file, max(size, mmap.PAGESIZE))
        self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)

    def put(self, arrays: Arrays, start: int = 0) -> tuple[dict[str, Place], int]:
        """Write arrays; say where, and where the next ones may begin."""
        layout, end = lay_out(arrays, start)
        self.reach(end)
        for name, array in arrays.items():
            self.view(layout[name])[...] = array
        return layout, end

    def view(self, place: Place) -> np.ndarray:
        """Return an array without copying it."""
        start, dtype, shape = place
        count = int(np.prod(shape))
        self.reach(start + count * np.dtype(dtype).itemsize)
        return np.frombuffer(self._map, dtype=dtype, count=count, offset=start).reshape(shape)

    def take(self, layout: Mapping[str, Place]) -> dict[str, np.ndarray]:
        """Copy arrays out."""
        return {name: self.view(place).copy() for name, place in layout.items()}

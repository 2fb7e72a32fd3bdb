"""Tensors of a state that never change, and may be too many for memory, such as every client's last models.

One is held in memory until a checkpoint is safe on disk. From then on it lies in a file of that checkpoint, which later
ones name again without writing it anew; whoever wants it reads the file. A run that is never saved keeps it in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor


class Stored:
    """One of them."""

    def __init__(self, tensor: Tensor | None = None):
        self._held = tensor
        self._load: Callable[[], Tensor] | None = None
        self.folder: Path | None = None  # of the checkpoints that hold it
        self.entry: dict[str, str] = {}  # its file there, and the checksum of that

    def read(self) -> Tensor:
        """Return it, from memory or from its file; it is not to be changed."""
        held = self._held  # looked at once: a thread that writes checkpoints may let go of it meanwhile
        if held is not None:
            return held
        assert self._load is not None
        return self._load()

    def rest_in(self, folder: Path, entry: dict[str, str], load: Callable[[], Tensor]) -> Stored:
        """Let go of the memory: from here on it is read from a file."""
        self.folder, self.entry, self._load = folder, entry, load
        self._held = None
        return self

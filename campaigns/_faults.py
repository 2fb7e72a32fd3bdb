"""A disk that fails, and a process that dies, at a file-system call that somebody names; in a process of its own.

Calls are counted in the order in which they come: opening, renaming, removing, making folders, writing to descriptors,
cutting and syncing, all inside one folder. At the one with the number asked for

    kill     the process is gone, as with kill -9: what was handed to the system stays
    torn     the same, and the file at hand has only half of what was written
    power    the machine is gone: what was not synced is lost, names of files among it
    full, read-only    from then on the disk takes nothing more, and the process hears so
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

How = Literal["count", "kill", "torn", "power", "full", "read-only"]
DIED = 77  # exit code of those who were killed
QUICK = 2  # calls that a small part of a campaign takes
MAKES = os.O_CREAT | os.O_WRONLY | os.O_RDWR
ERRORS = {"full": errno.ENOSPC, "read-only": errno.EROFS}


@dataclass
class Disk:
    """Watches the calls of this process under a folder, from `watch` on; there is no way back."""

    folder: Path
    how: How
    at: int
    run: Path | None = None  # whose rounds are told; the folder itself
    calls: int = 0
    synced: dict[str, int] = field(default_factory=dict)  # bytes of each file that a power cut leaves
    undone: dict[str, list[Callable[[], None]]] = field(default_factory=dict)  # by folder, what is not synced there

    def watch(self) -> None:
        """Begin."""
        self._lock, self._busy = threading.RLock(), False
        self._root = os.path.realpath(self.folder) + os.sep
        for file in self.folder.rglob("*"):
            if file.is_file():
                self.synced[os.path.realpath(file)] = file.stat().st_size
        sys.addaudithook(self._hear)
        self._fsync, self._write, self._cut = os.fsync, os.write, os.ftruncate
        os.fsync, os.write, os.ftruncate = self._sync, self._put, self._shorten

    # ---- calls

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove", "os.mkdir") or isinstance(args[0], int):
            return
        with self._lock:
            if self._busy or not (path := self._inside(args[0])):
                return
            self._busy = True
            try:
                writes = event != "open" or self._writes(args)
                self._step(path, writes)
                self._remember(event, path, args, writes)
            finally:
                self._busy = False

    def _sync(self, file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        with self._lock:
            path = os.path.realpath(os.readlink(f"/proc/self/fd/{number}"))
            if self._inside(path):
                self._step(path, True)
            if os.path.isdir(path):  # also the one above, which holds the folder's own name
                self.undone.pop(path, None)
            elif os.path.exists(path):
                self.synced[path] = os.path.getsize(path)

    def _put(self, number: int, data: Any) -> int:
        with self._lock:
            if path := self._inside(os.readlink(f"/proc/self/fd/{number}")):
                self._step(path, True, lambda: self._write(number, data[: len(data) // 2]))
        return self._write(number, data)

    def _shorten(self, number: int, size: int) -> None:
        with self._lock:
            if (path := self._inside(os.readlink(f"/proc/self/fd/{number}"))) and self.how in ("kill", "power"):
                self._step(path, True)
        self._cut(number, size)

    def _inside(self, path: Any) -> str:
        full = os.path.realpath(os.fsdecode(path))
        return full if (full + os.sep).startswith(self._root) else ""

    def _writes(self, args: tuple[Any, ...]) -> bool:
        mode, flags = args[1], args[2] or 0
        return bool(set(mode) & set("wax+")) if isinstance(mode, str) else bool(flags & MAKES)

    def _remember(self, event: str, path: str, args: tuple[Any, ...], writes: bool) -> None:
        """Note how a power cut would undo a call; called before the call is made."""
        target = os.path.realpath(os.fsdecode(args[1])) if event == "os.rename" else path
        if event == "os.rename":
            self.synced[target] = self.synced.pop(path, 0)
        if self.how != "power" or not writes:
            return
        before = Path(target).read_bytes() if os.path.isfile(target) else None
        if event in ("open", "os.mkdir") and os.path.exists(path):
            return
        self.undone.setdefault(os.path.dirname(target), []).append(lambda: _restore(Path(target), before))

    # ---- what happens then

    def _step(self, path: str, writes: bool, torn: Callable[[], Any] | None = None) -> None:
        self.calls += 1
        if self.how in ERRORS:
            if self.calls >= self.at and writes:
                raise OSError(ERRORS[self.how], os.strerror(ERRORS[self.how]), path)
        elif self.calls == self.at and self.how != "count":
            self._busy = True
            self._tell_rounds()
            if self.how == "torn":
                torn() if torn else self._tear(path)
            elif self.how == "power":
                self._lose()
            os._exit(DIED)

    def _tell_rounds(self) -> None:
        """Say outside of the folder how many rounds a user had seen."""
        events = (self.run or self.folder) / "events.jsonl"
        seen = events.read_bytes().count(b'"event": "round"') if events.exists() else 0
        seen_file(self.folder).write_text(str(seen))

    def _tear(self, path: str) -> None:
        if os.path.isfile(path):
            os.truncate(path, (self.synced.get(path, 0) + os.path.getsize(path)) // 2)

    def _lose(self) -> None:
        """Take back what was not synced: names from some moment on, and the ends of files."""
        rng = Random(self.at)
        deepest_first = sorted(self.undone.items(), key=lambda entry: -entry[0].count(os.sep))
        for _, calls in deepest_first:
            for undo in reversed(calls[rng.randint(0, len(calls)) :]):
                undo()
        for file in self.folder.rglob("*"):
            if file.is_file():
                least, size = self.synced.get(os.path.realpath(file), 0), file.stat().st_size
                if least < size:
                    os.truncate(file, rng.randint(least, size))


def some_calls(calls: int, quick: bool, every: int = 1) -> Sequence[int]:
    """Give the numbers of every so manieth call, or of a few that are spread over all of them."""
    few = [1 + i * (calls - 1) // (QUICK - 1) for i in range(QUICK)]
    return few if quick else range(1, calls + 1, every)


def seen_file(folder: Path) -> Path:
    """Return where a process that dies says how many rounds of a run it had told of."""
    return folder.with_name(f"{folder.name}.seen")


def _restore(path: Path, before: bytes | None) -> None:
    if before is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(before)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

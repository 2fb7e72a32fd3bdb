"""What left a site: one line for every reply, written before it leaves, each bound to the one before it.

    {"number": 7, "at": "2026-01-31T12:00:00+00:00", "kind": "task", "run": ..., "bytes": ..., "sha256": ...,
     "previous": hash of line 6, "hash": SHA-256 over this line without its hash}

A line that is changed, taken out or put in breaks the chain. Lines cut off at the end do not: note the newest hash
somewhere else now and then, and ask whether it is still there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedstrata.core.errors import RequestError
from fedstrata.core.storage.files import sync_folder

FIRST = "0" * 64  # what the first line calls the one before it
BLOCK = 1 << 20  # bytes that are read at once, from the end
OFTEN = 1.0  # seconds after which lines are safe on disk in any case


class AuditLog:
    """An append-only file; without a path, a list in memory."""

    def __init__(self, path: Path | None = None):
        self._path, self._lines = path, list[dict[str, Any]]()
        self._number, self._newest, self._synced, self._file = 0, FIRST, 0.0, -1
        self._later: threading.Timer | None = None
        if path is not None:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            sync_folder(path.parent)  # its name, too, survives a power cut
            self._mend()
            last = next(self.newest_first(), None)
            if last is not None:
                self._number, self._newest = int(last["number"]), str(last["hash"])

    def append(self, kind: str, reply: bytes, **about: Any) -> None:
        """Note a reply."""
        line = {
            "number": self._number + 1,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "kind": kind,
            **about,
            "bytes": len(reply),
            "sha256": sha256(reply).hexdigest(),
            "previous": self._newest,
        }
        line["hash"] = _hash(line)
        if self._path is None:
            self._lines.append(line)
        else:
            self._write(json.dumps(line).encode() + b"\n")
        self._number, self._newest = line["number"], line["hash"]

    def _write(self, line: bytes) -> None:
        """Add a line, whole or not at all."""
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) < len(line):
                raise OSError("the disk is full")
            if time.monotonic() - self._synced > OFTEN:
                os.fsync(self._file)
                self._synced = time.monotonic()
            elif self._later is None:  # nothing more may come for hours
                self._later = threading.Timer(OFTEN, self._sync)
                self._later.daemon = True
                self._later.start()
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _sync(self) -> None:
        self._later = None  # a line that comes now may come too late for this one
        with suppress(OSError):  # the next line meets it again, and is refused
            os.fsync(self._file)

    def newest_first(self) -> Iterator[Mapping[str, Any]]:
        """Give lines from the end; only as much of the file is read as somebody asks for."""
        if self._path is None:
            yield from reversed(self._lines)
            return
        at, tail = os.fstat(self._file).st_size, b""
        while at > 0:
            size = min(BLOCK, at)
            at -= size
            first, *lines = (os.pread(self._file, size, at) + tail).split(b"\n")
            tail = first
            for line in reversed(lines):
                if line:
                    yield self._read(line)
        if tail:
            yield self._read(tail)

    def _read(self, line: bytes) -> Mapping[str, Any]:
        try:
            told = json.loads(line)
            datetime.fromisoformat(told["at"])
            if type(told["number"]) is not int or not isinstance(told["hash"], str):
                raise ValueError("it has no place in the chain")
            return dict(told)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RequestError(f"{self._path} is damaged; `fedstrata deploy audit` says where") from None

    def _mend(self) -> None:
        """Cut off a line that a power cut left unfinished: its reply never left."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            at = size
            while at > 0 and os.pread(self._file, 1, at - 1) != b"\n":
                at -= 1
            os.ftruncate(self._file, at)


@dataclass(frozen=True)
class AuditResult:
    """What a look at a whole log found."""

    lines: int
    newest: str  # hash
    wrong: str | None  # in words; None: nothing


def verify(path: Path, known: str | None = None) -> tuple[list[dict[str, Any]], AuditResult]:
    """Read a log and check every line; `known` is a hash that must be in it."""
    lines, newest, seen = list[dict[str, Any]](), FIRST, known in (None, FIRST)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None
    for i, data in enumerate(text.splitlines(), 1):
        try:
            line = json.loads(data)
            right = line["number"] == i and line["previous"] == newest and line["hash"] == _hash(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            right = False
        if not right:
            return lines, AuditResult(i - 1, newest, f"line {i} is not the one that was written after line {i - 1}")
        newest = line["hash"]
        seen = seen or newest == known
        lines.append(line)
    wrong = None if seen else f"{known} is not in it: lines at its end are missing"
    return lines, AuditResult(len(lines), newest, wrong)


def _hash(line: Mapping[str, Any]) -> str:
    return sha256(json.dumps({k: v for k, v in line.items() if k != "hash"}, sort_keys=True).encode()).hexdigest()

"""Logs for machines: one JSON object a line, with the time, and files that do not grow for ever.

Several processes may write one file: each line is one write, and the file is opened for each, so that nobody goes on
writing into one that another has put aside.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedstrata.core.storage.file_lock import take_lock
from fedstrata.core.storage.files import disk_is_full

FILE = "log.jsonl"  # in the folder of a server or site
LARGEST = 10 << 20  # bytes of a log
KEPT = 5  # older ones: LOG.1 is the newest of them


class JsonLines(logging.Handler):
    """A handler for Python's own logging; `extra={"about": {...}}` of a record becomes fields of its line.

    So does `extra={"event": NAME}`, for what is also said to people: without it, the message is the event.
    """

    def __init__(self, path: Path, **always: Any):
        super().__init__()
        self._path, self._always = path, always
        self._failed = False  # whether the last line could not be written

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; where that cannot be, as on a full disk, one line on stderr says so until it can again."""
        try:
            append(self._path, self.line(record))
            self._failed = False
        except OSError as error:
            if not self._failed:
                with suppress(OSError):  # which may go to the same disk
                    print(f"{self._path} cannot be written: {error.strerror or error}", file=sys.stderr, flush=True)
            self._failed = True

    def line(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return what stands in the line of a record."""
        about = getattr(record, "about", {})
        said = {"said": record.getMessage()} if hasattr(record, "event") else {}
        event = getattr(record, "event", record.getMessage())
        told = {"time": now(record.created), "level": record.levelname.lower(), "event": event, **said}
        told |= {**self._always, **about}
        if record.exc_info and record.exc_info[1] is not None:
            told["error"] = logging.Formatter().formatException(record.exc_info)
        return told


def now(at: float) -> str:
    """Write a time, as all logs do."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def append(path: Path, told: dict[str, Any]) -> None:
    """Add a line to a file that only its owner can read; a file that is full is put aside first."""
    put_aside(path)
    append_line(path, told)


def append_line(path: Path, told: dict[str, Any]) -> None:
    """Add a line in one write, however long the file is: for what is no log, and must be there for good."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, (json.dumps(told, default=str) + "\n").encode())
    finally:
        os.close(handle)


def append_event(path: Path, event: str, level: int = logging.INFO, /, **about: Any) -> None:
    """Add a line to the log of another process; where its disk is full, whoever says it goes on."""
    told = {"time": now(time.time()), "level": logging.getLevelName(level).lower(), "event": event, **about}
    with suppress(OSError):
        append(path, told)


def put_aside(path: Path, largest: int = LARGEST, kept: int = KEPT) -> bool:
    """Rename a log that is full, and those before it; say whether that was done."""
    if not _full(path, largest):
        return False
    lock = take_lock(path.with_name(path.name + ".lock"))
    if lock is None:  # somebody is at it
        return False
    try:
        if not _full(path, largest):
            return False
        _shift(path, kept)
        os.replace(path, _older(path, 1))
    finally:
        os.close(lock)
    return True


def cut_off(path: Path, largest: int = LARGEST) -> bool:
    """Copy a log that is full and empty it: for those whose writers keep them open, and only ever append."""
    if not _full(path, largest):
        return False
    _shift(path, KEPT)
    older = _older(path, 1)
    try:
        handle = os.open(older, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as copy, path.open("rb") as full:
            while piece := full.read(1 << 20):
                copy.write(piece)
    except OSError as error:
        if not disk_is_full(error):
            raise
        older.unlink(missing_ok=True)  # there is no room for a copy: the room counts more
    os.truncate(path, 0)
    return True


def _full(path: Path, largest: int) -> bool:
    try:
        return path.stat().st_size >= largest
    except OSError:
        return False


def _shift(path: Path, kept: int) -> None:
    for number in range(kept - 1, 0, -1):
        if _older(path, number).exists():
            os.replace(_older(path, number), _older(path, number + 1))


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")

"""What campaigns do in processes of their own: forked from one that has imported everything, and gone afterwards."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from campaigns._faults import DIED, Disk
from fedstrata.core.errors import FedstrataError

REFUSED, BROKEN = 2, 1  # exit codes: an error in words, a traceback
_SERVER = get_context("forkserver")
_SERVER.set_forkserver_preload(["campaigns._subjects", "campaigns._sites"])


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int | None
    said: str

    @property
    def died(self) -> bool:
        """Whether it was killed as it was asked for."""
        return self.code == DIED

    @property
    def words(self) -> str:
        """How it ended, in a line."""
        return f"exit code {self.code}: {(self.said.strip().splitlines() or ['nothing said'])[-1][:200]}"


def start(notes: Path, work: Callable[..., Any], *args: Any, disk: Disk | None = None) -> Any:
    """Start a process; what goes wrong in it, it writes to `notes`."""
    notes.unlink(missing_ok=True)
    process = _SERVER.Process(target=_live, args=(notes, work, args, disk))
    process.start()
    return process


def wait(process: Any, notes: Path, seconds: float = 7200.0) -> Ended:
    """Wait for its end; one that does not end is killed, and has no exit code."""
    process.join(seconds)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    process.close()
    return Ended(code, notes.read_text() if notes.exists() else "")


def run_child(notes: Path, work: Callable[..., Any], *args: Any, disk: Disk | None = None) -> Ended:
    """Let a process do something, to its end or until its disk says so."""
    return wait(start(notes, work, *args, disk=disk), notes)


def _live(notes: Path, work: Callable[..., Any], args: tuple[Any, ...], disk: Disk | None) -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    code = 0
    try:
        if disk is not None:
            disk.watch()
        work(*args)
        if disk is not None:
            notes.write_text(str(disk.calls))
    except FedstrataError as error:
        code = REFUSED
        notes.write_text(f"{type(error).__name__}: {error}")
    except BaseException:
        code = BROKEN
        notes.write_text(traceback.format_exc())
    os._exit(code)

"""Processes that belong together: they are started, watched and ended as one.

Every one has a session of its own, so that Ctrl-C reaches only us and they end in order. Where we are killed, they end
by themselves (`core/machine/parent_line.py`); what is left over all the same is found by the notes in the folder, and
ended before the next life begins.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedstrata.core.errors import RequestError
from fedstrata.core.machine.parent_line import LINE
from fedstrata.core.storage.file_lock import is_locked, take_lock
from fedstrata.core.storage.files import disk_is_full, write_atomically

GRACE = 15.0  # seconds to end by oneself
POLITE = [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

Known = tuple[int, str]  # a process: its id, and when it began, because ids come again


class Household:
    """All processes that one command started; its folder is locked while it lives."""

    def __init__(self, folder: Path, what: str):
        self.folder, self._notes = folder, folder / "processes.json"
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lines: dict[str, int] = {}  # our ends, which close with us at the latest
        lock = take_lock(folder / "lock")
        if lock is None:
            raise RequestError(f"{what} is already running on this machine")
        self._lock = lock
        end(family(self._left_over()), grace=5.0)

    def start(
        self, name: str, command: Sequence[str], log: Path | None, env: Mapping[str, str], cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process; what it prints goes to the log, or to where we print."""
        out = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        theirs, ours = os.pipe()
        try:
            child = subprocess.Popen(
                command,
                env={**env, LINE: str(theirs)},
                pass_fds=[theirs],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
            if out is not None:
                os.close(out)
        self._children[name], self._lines[name] = child, ours
        began = {pid: since for pid, (_, since) in everybody().items()}
        known = [(c.pid, began[c.pid]) for c in self._children.values() if c.pid in began]
        try:
            write_atomically(self._notes, json.dumps(known).encode())
        except OSError as error:
            if not disk_is_full(error):  # a site has more to say then: it must not lose sight of what it started
                raise
        return child

    def gone(self) -> str | None:
        """Name a process that has ended; None while all are there."""
        return next((name for name, child in list(self._children.items()) if child.poll() is not None), None)

    def code(self, name: str) -> int | None:
        """Return the exit code of a process; None while it is there."""
        return self._children[name].poll()

    def drop(self, name: str) -> None:
        """Forget a process that has ended; what it had started ends by itself."""
        self._children.pop(name)
        os.close(self._lines.pop(name))

    def close(self) -> None:
        """End all, the last one first; then others may use the folder."""
        with undisturbed():
            for child in reversed(list(self._children.values())):
                finish(child)
            for name in list(self._children):
                self.drop(name)
            self._notes.unlink(missing_ok=True)
            os.close(self._lock)

    def _left_over(self) -> list[Known]:
        try:
            return [(int(pid), str(since)) for pid, since in json.loads(self._notes.read_text())]
        except (OSError, ValueError, TypeError):
            return []


def running(folder: Path) -> bool:
    """Say whether a household lives in a folder."""
    return is_locked(folder / "lock")


def finish(child: subprocess.Popen[bytes]) -> None:
    """End a child and everything it started."""
    began = {pid: since for pid, (_, since) in everybody().items()}
    members = family([(child.pid, began[child.pid])] if child.pid in began else [])
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
    others = {known for known in members if known[0] != child.pid}
    _until(lambda: not alive(others), 3.0)  # they look after their parent themselves
    end(others)
    if child.poll() is None:
        child.kill()
    child.wait()


def end(processes: Collection[Known], grace: float = GRACE) -> None:
    """Ask processes that are not our children to end, then make them."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid, _ in alive(processes):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sign)
        if _until(lambda: not alive(processes), grace):
            return


def family(heads: Collection[Known]) -> set[Known]:
    """Return processes with all that they started, as far as they are alive."""
    there = everybody()
    found = {pid for pid, since in heads if there.get(pid, (0, ""))[1] == since}
    while more := {pid for pid, (parent, _) in there.items() if parent in found} - found:
        found |= more
    return {(pid, there[pid][1]) for pid in found}


def alive(processes: Collection[Known]) -> set[Known]:
    """Return those that are still there."""
    there = everybody()
    return {(pid, since) for pid, since in processes if there.get(pid, (0, ""))[1] == since}


def everybody() -> dict[int, tuple[int, str]]:
    """Return every process of this machine: who started it, and when."""
    if not Path("/proc/self/stat").exists():
        return _by_ps()
    there = {}
    for path in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            fields = (path / "stat").read_text().rpartition(")")[2].split() if path.name.isdigit() else []
            if fields and fields[0] != "Z":
                there[int(path.name)] = (int(fields[1]), fields[19])
    return there


def _by_ps() -> dict[int, tuple[int, str]]:
    text = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,state=,lstart="], capture_output=True, text=True, check=False)
    rows = [line.split(None, 3) for line in text.stdout.splitlines()]
    return {int(pid): (int(parent), since) for pid, parent, state, since in rows if not state.startswith("Z")}


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a second Ctrl-C not break off what the first one began."""
    before = {sign: signal.signal(sign, signal.SIG_IGN) for sign in POLITE}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def _until(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True

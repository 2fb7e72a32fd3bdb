"""The runs of a server: who asked for each, when, with which method and privacy, and where its folder is.

`deploy run` writes a line when it submits one; the server reads them, and logs what becomes of each. The file is never
put aside, as logs are: sites fetch their models by it, and backups find their runs.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedstrata.core.storage.file_lock import is_locked
from fedstrata.core.storage.json_log import append_line, now
from fedstrata.deploy.logs import note
from fedstrata.remote.flower.failure import FAILED, was_stopped

FILE = "runs.jsonl"
SITES = "sites.json"  # in a run folder: `remote/server/site_registry.py` writes it, and needs torch
WAITING, RUNNING, FINISHED, FAILED_STATE, STOPPED = "waiting", "running", "finished", "failed", "stopped"
LOOK = 2.0  # seconds between two looks at runs that are not over
NEW = 3600.0  # seconds in which a run without a folder may still be waiting for its sites
OVER = (FINISHED, FAILED_STATE)


@dataclass(frozen=True)
class BookedRun:
    """A run as it was asked for."""

    number: str  # Flower's
    path: str  # of its folder
    method: str
    privacy: dict[str, Any]
    rounds: int
    sites: int
    asked_by: dict[str, Any]
    resumed: bool = False
    at: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        """Return what the run is called, which is what its folder is."""
        return Path(self.path).name

    def state(self) -> str:
        """Say what has become of it, from what lies in its folder."""
        folder = Path(self.path)
        if (folder / FAILED).exists():
            return STOPPED if was_stopped(folder) else FAILED_STATE
        if (folder / "summary.json").exists():
            return FINISHED
        if is_locked(folder / "lock"):
            return RUNNING
        begun = (folder / "events.jsonl").exists()
        return STOPPED if begun or time.time() - self.at > NEW else WAITING

    def id(self) -> str | None:
        """Return what sites call it, in their logs and reports; None before they were told to begin."""
        try:
            return str(json.loads((Path(self.path) / SITES).read_text())["run"])
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def about(self) -> dict[str, Any]:
        """Return what logs say of it."""
        id = self.id()
        told = {key: value for key, value in asdict(self).items() if key != "at"} | {"run": self.name}
        return told if id is None else told | {"id": id}


def book(folder: Path, run: BookedRun) -> None:
    """Write down that a run was submitted."""
    append_line(folder / FILE, asdict(run))


def read_booked(folder: Path) -> list[BookedRun]:
    """Return the runs of a server, the oldest first; of one that was resumed, the last line."""
    try:
        lines = (folder / FILE).read_text().splitlines()
    except OSError:
        return []
    runs: dict[str, BookedRun] = {}
    for line in lines:
        try:
            run = BookedRun(**json.loads(line))
        except (ValueError, TypeError):  # a line that was cut off
            continue
        runs.pop(run.path, None)
        runs[run.path] = run
    return list(runs.values())


class RunWatch:
    """Logs what becomes of the runs of a server; what was over before it began is not told again."""

    def __init__(self, folder: Path):
        self._folder, self._seen, self._next = folder, -1, 0.0
        self._open: list[BookedRun] = []  # runs that may still change
        self._known = {(run.path, run.at): run.state() for run in read_booked(folder)}

    def turn(self) -> None:
        """Look at the runs now and then, and log what is new."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK
        if (size := self._size()) != self._seen:
            self._seen = size
            self._open = [run for run in read_booked(self._folder) if self._known.get((run.path, run.at)) not in OVER]
        for run in self._open:
            self._look(run)
        self._open = [run for run in self._open if self._known[run.path, run.at] not in OVER]

    def _look(self, run: BookedRun) -> None:
        state, before = run.state(), self._known.get((run.path, run.at))
        if state == before:
            return
        self._known[run.path, run.at] = state
        if before is None:
            note("run_submitted", submitted=now(run.at), **run.about())
        if state != WAITING:
            level = logging.ERROR if state == FAILED_STATE else logging.INFO
            note(f"run_{state}", level, **(run.about() | _outcome(Path(run.path), state)))

    def _size(self) -> int:
        try:
            return (self._folder / FILE).stat().st_size
        except OSError:
            return -1


def _outcome(folder: Path, state: str) -> dict[str, Any]:
    try:
        if state == FAILED_STATE or was_stopped(folder):
            return {"why": str(json.loads((folder / FAILED).read_text()).get("message", ""))[:500]}
        if state == FINISHED:
            told = json.loads((folder / "summary.json").read_text())
            return {key: told[key] for key in ("rounds", "accuracy", "stopped") if key in told}
    except (OSError, ValueError, AttributeError):
        return {}
    return {}

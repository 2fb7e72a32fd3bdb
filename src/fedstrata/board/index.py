"""The runs below a folder, at a glance: a row each, from the ends of files and only when these have changed."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedstrata.config.naming import name_run
from fedstrata.runs.folder import Run

DEPTH = 6  # folders below the root in which runs are looked for; a comparison's lie in COMPARISON/METHOD/seed-N
TAILS = (1 << 16, 1 << 20)  # bytes read from the end of the events; more where no scored round is among them
Stamp = tuple[int, int] | None  # time and size of a file, which change when it does


@dataclass(frozen=True)
class Row:
    """A run in the list."""

    path: str  # below the root
    state: str  # running, finished, stopped (by a user, a crash or a kill) or damaged
    why: str = ""  # what is damaged, or why a finished run ended
    method: str = ""
    data: str = ""
    seed: int | None = None
    rounds: int = 0
    planned: int | None = None
    accuracy: float | None = None
    changed: float = 0.0  # when its events were last written to, in seconds since 1970


@dataclass(frozen=True)
class _Read:
    """What was read of a run, and when the files were what they were."""

    stamps: tuple[Stamp, ...]
    row: Row


class RunIndex:
    """All runs below a folder. `look` goes through them again; a run that has not changed costs a few `stat`s."""

    def __init__(self, root: Path):
        self.root = root
        self.rows: dict[str, Row] = {}
        self._read: dict[str, _Read] = {}

    def look(self) -> None:
        """See which runs there are now, and how far they are."""
        self._read = {path: self._glance(path) for path in sorted(_runs(self.root, "", DEPTH))}
        self.rows = {path: read.row for path, read in self._read.items()}

    def folder(self, path: str) -> Path:
        """Return the folder of a run that is listed; other paths lead nowhere."""
        if path not in self.rows:
            raise KeyError(path)
        return self.root / path

    def _glance(self, path: str) -> _Read:
        folder, before = self.root / path, self._read.get(path)
        stamps = tuple(stamp(folder / name) for name in ("experiment.toml", "events.jsonl", "summary.json"))
        if before is not None and before.stamps == stamps:
            state = before.row.state
            if state in ("running", "stopped"):  # nothing need be written when a run is killed or goes on
                state = _state(folder)
            return before if state == before.row.state else _Read(stamps, replace(before.row, state=state))
        return _Read(stamps, _row(path, folder, before.row if before else None, stamps[1]))


def _runs(root: Path, below: str, depth: int) -> Iterator[str]:
    """Return the folders that hold a run; links are not followed, and inside a run there is none."""
    folder = root / below
    if (folder / "experiment.toml").is_file() and (folder / "events.jsonl").is_file():
        yield below or "."
        return
    try:
        inside = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)] if depth else []
    except OSError:  # it went away, or may not be read
        return
    for name in inside:
        if not name.startswith("."):
            yield from _runs(root, f"{below}/{name}" if below else name, depth - 1)


def _row(path: str, folder: Path, before: Row | None, events: Stamp) -> Row:
    changed = events[0] / 1e9 if events else 0.0
    try:
        asked = tomllib.loads((folder / "experiment.toml").read_text())
        row = Row(
            path,
            _state(folder),
            method=name_run(asked),
            data=str(_at(asked, "data", "name") or ""),
            seed=_at(asked, "train", "seed"),
            planned=_at(asked, "train", "rounds"),
            changed=changed,
        )
        if (folder / "summary.json").exists():
            told = json.loads((folder / "summary.json").read_text())
            done = {"rounds": int(told["rounds"]), "accuracy": told["accuracy"]}
            return replace(row, state="finished", why=str(told.get("stopped", "")), **done)
        rounds, accuracy = _progress(folder / "events.jsonl")
    except (OSError, ValueError, TypeError, KeyError) as error:
        return Row(path, "damaged", f"{type(error).__name__}: {error}", changed=changed)
    if accuracy is None and before is not None and before.rounds <= rounds:
        accuracy = before.accuracy  # of a round that was read earlier
    return replace(row, rounds=rounds, accuracy=accuracy)


def _state(folder: Path) -> str:
    try:
        return "running" if Run(folder).running else "stopped"
    except OSError:
        return "stopped"  # it went away, or lies where there are no locks


def _progress(events: Path) -> tuple[int, float | None]:
    """Return the last round and the last accuracy, from the end of the events; a line that is half written is none."""
    rounds = 0
    for tail in TAILS:
        with events.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - tail, 0))
            lines = file.read(tail).split(b"\n")[0 if tail >= size else 1 : -1]
        for line in reversed(lines):
            try:
                event = json.loads(line) if line.startswith(b'{"event": "round"') else {}
            except ValueError:
                continue  # the figures of the run say so
            rounds = rounds or event.get("round", 0)
            if isinstance(accuracy := event.get("accuracy"), float | int):
                return rounds, accuracy
        if tail >= size:
            break
    return rounds, None


def stamp(path: Path) -> Stamp:
    """Return what changes when a file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _at(table: Mapping[str, Any], *keys: str) -> Any:
    found: Any = table
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found

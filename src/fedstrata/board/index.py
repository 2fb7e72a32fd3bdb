"""The runs below a folder, at a glance: a row each, from the ends of files and only when these have changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISREG
from typing import Any

from fedstrata.board.notes import FILE as NOTES
from fedstrata.board.notes import read_notes
from fedstrata.board.settings import Settings, unusual
from fedstrata.config.naming import name_data, name_run
from fedstrata.core.errors import RequestError
from fedstrata.core.plain_text import plain_text
from fedstrata.core.storage.event_lines import read_event
from fedstrata.core.storage.toml import read_toml
from fedstrata.runs.folder import LOCK, Run

DEPTH = 6  # folders below the root in which runs are looked for; a comparison's lie in COMPARISON/METHOD/seed-N
TAILS = (1 << 16, 1 << 20)  # bytes read from the end of the events; more where no scored round is among them
ROUND, PACED = b'{"event": "round"', 20  # how the line of a round begins; rounds over which a pace is taken
LONGEST = 1 << 26  # bytes of a file that is read whole
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
    pace: float | None = None  # seconds a round, lately; of a run that is running
    settings: Settings = field(default_factory=dict)  # those that are not the defaults
    note: str = ""
    tags: tuple[str, ...] = ()


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
        stamps = tuple(stamp(folder / name) for name in ("experiment.toml", "events.jsonl", "summary.json", NOTES))
        if before is not None and before.stamps == stamps:
            state = before.row.state
            if state in ("running", "stopped"):  # nothing need be written when a run is killed or goes on
                state = _state(folder)
            return before if state == before.row.state else _Read(stamps, replace(before.row, state=state))
        return _Read(stamps, _row(path, folder, before.row if before else None, stamps[1]))


def _runs(root: Path, below: str, depth: int) -> Iterator[str]:
    """Return the folders that hold a run; links are not followed, and inside a run there is none."""
    folder = root / below
    try:
        if (folder / "experiment.toml").is_file() and (folder / "events.jsonl").is_file():
            yield below or "."
            return
        inside = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)] if depth else []
    except OSError:  # it went away, or may not be read
        return
    for name in inside:
        if not name.startswith("."):
            yield from _runs(root, f"{below}/{name}" if below else name, depth - 1)


def _row(path: str, folder: Path, before: Row | None, events: Stamp) -> Row:
    changed = events[0] / 1e9 if events else 0.0
    try:
        _check_files(folder)
        notes = read_notes(folder)
        asked = read_toml((folder / "experiment.toml").read_text(), "experiment.toml")
        row = Row(
            path,
            _state(folder),
            method=name_run(asked),
            data=name_data(_at(asked, "data", "name"), _at(asked, "data", "path")),
            seed=_whole(_at(asked, "train", "seed")),
            planned=_whole(_at(asked, "train", "rounds")),
            changed=changed,
            settings=unusual(asked),
            note=notes.note,
            tags=notes.tags,
        )
        if (folder / "summary.json").exists():
            told = Run(folder).summary
            why, accuracy = plain_text(str(told.get("stopped", ""))), _figure(told["accuracy"])
            return replace(row, state="finished", why=why, rounds=int(told["rounds"]), accuracy=accuracy)
        rounds, accuracy = _progress(folder / "events.jsonl")
        pace = _pace(folder / "events.jsonl") if row.state == "running" else None
    except Exception as error:  # one run folder, whatever is in it, must not hide the others
        kind = "" if isinstance(error, RequestError) else f"{type(error).__name__}: "
        return Row(path, "damaged", plain_text(f"{kind}{error}"), changed=changed)
    if accuracy is None and before is not None and before.rounds <= rounds:
        accuracy = before.accuracy  # of a round that was read earlier
    return replace(row, rounds=rounds, accuracy=accuracy, pace=pace)


def _check_files(folder: Path) -> None:
    """Refuse what would be waited for, or read for ever: pipes and devices, and gigabytes where kilobytes belong."""
    for name in ("experiment.toml", "summary.json", NOTES, LOCK):
        if os.path.lexists(folder / name):
            found = (folder / name).stat()
            if not S_ISREG(found.st_mode) or found.st_size > LONGEST:
                raise RequestError(f"{name} is no file of at most {LONGEST >> 20} MiB")


def _state(folder: Path) -> str:
    try:
        return "running" if Run(folder).running else "stopped"
    except OSError:
        return "stopped"  # it went away, or lies where there are no locks


def _progress(events: Path) -> tuple[int, float | None]:
    """Return the last round and the last accuracy, from the end of the events; a line that is half written is none."""
    rounds = 0
    for tail in TAILS:
        lines, whole = tail_lines(events, tail)
        for line in reversed(lines):
            event = read_event(line) if line.startswith(ROUND) else None
            if event is None:
                continue  # of damaged ones, the figures of the run say so
            rounds = rounds or event["round"]
            if (accuracy := _figure(event.get("accuracy"))) is not None:
                return rounds, accuracy
        if whole:
            break
    return rounds, None


def _pace(events: Path) -> float | None:
    """Return the seconds that a round took lately, by the clock that the process of the run noted."""
    lines = [line for line in tail_lines(events, TAILS[0])[0] if line.startswith(ROUND)][-PACED:]
    ends = [event for line in (lines[:1] + lines[-1:]) if (event := read_event(line)) is not None]
    clocks = [_figure(event.get("wall", {}).get("seconds")) for event in ends]
    if len(ends) < 2 or clocks[0] is None or clocks[1] is None:
        return None
    rounds, seconds = ends[1]["round"] - ends[0]["round"], clocks[1] - clocks[0]
    return seconds / rounds if rounds > 0 and seconds > 0 else None  # a run that was resumed begins to count anew


def tail_lines(path: Path, size: int) -> tuple[list[bytes], bool]:
    """Return the whole lines among the last bytes of a file, and whether these are all of it."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(length - size, 0))
        return file.read(size).split(b"\n")[0 if size >= length else 1 : -1], size >= length


def stamp(path: Path) -> Stamp:
    """Return what changes when a file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _figure(value: Any) -> float | None:
    """Return a number that JSON has; a browser reads no other."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


def _at(table: Mapping[str, Any], *keys: str) -> Any:
    found: Any = table
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found

"""What the board tells of a chosen run beside its figures: settings, costs, the end of its log, notes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedstrata.board.index import Stamp, stamp, tail_lines
from fedstrata.board.notes import FILE, read_notes
from fedstrata.board.settings import Settings, flatten
from fedstrata.core.plain_text import plain_text
from fedstrata.core.storage.event_lines import read_event
from fedstrata.core.storage.toml import read_toml

LOG_BYTES, LOG_LINES, LONGEST = 1 << 17, 200, 300  # of the log: what is read, what is shown, and of each line
FIGURES = (
    "accuracy",
    "balanced_accuracy",
    "worst10",
    "loss_test",
    "bytes_up",
    "bytes_down",
    "client_updates",
    "time",
)  # of the last scored round


@dataclass(frozen=True)
class RunDetails:
    """One run."""

    path: str
    settings: Settings = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    note: str = ""
    tags: tuple[str, ...] = ()


class DetailReader:
    """Reads a run again when its files have changed."""

    def __init__(self, folder: Path, name: str):
        self._folder, self._name = folder, name
        self._seen: tuple[Stamp, ...] | None = None
        self._details = RunDetails(name)

    def read(self) -> RunDetails:
        """Return the details as they are now; of a run that is gone or damaged, those that can be read."""
        names = ("experiment.toml", "events.jsonl", "summary.json", FILE)
        now = tuple(stamp(self._folder / name) for name in names)
        if now != self._seen:
            self._seen, self._details = now, _read(self._folder, self._name)
        return self._details


def _read(folder: Path, name: str) -> RunDetails:
    events = [event for line in _lines(folder) if (event := read_event(line)) is not None]
    scored = next((event for event in reversed(events) if event.get("accuracy") is not None), {})
    figures = {key: scored[key] for key in FIGURES if isinstance(scored.get(key), int | float)}
    notes = read_notes(folder)
    log = tuple(write_line(event) for event in events[-LOG_LINES:])
    return RunDetails(name, _settings(folder), figures, log, notes.note, notes.tags)


def _lines(folder: Path) -> list[bytes]:
    try:
        return tail_lines(folder / "events.jsonl", LOG_BYTES)[0]
    except OSError:  # gone, or not there yet
        return []


def _settings(folder: Path) -> Settings:
    try:
        return flatten(read_toml((folder / "experiment.toml").read_text(), "experiment.toml"))
    except Exception:  # damaged: the list says so
        return {}


def write_line(event: Mapping[str, Any]) -> str:
    """Return an event as a line of a log: single values, and how many where there are several; of rounds, figures.

    Examples
    --------
    >>> write_line({"event": "dropped", "round": 5, "clients": [1, 2, 3], "why": "late", "wall": {}})
    'round 5  dropped  clients=3 values  why=late'
    """
    at = f"round {event['round']}  " if "round" in event else ""
    parts = [f"{key}={_short(value)}" for key, value in event.items() if key not in ("event", "round", "wall", "steps")]
    return plain_text(f"{at}{event['event']}  {'  '.join(parts)}", LONGEST)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | dict) and len(value) > 1:
        return f"{len(value)} values"
    return value if isinstance(value, str) else json.dumps(value)

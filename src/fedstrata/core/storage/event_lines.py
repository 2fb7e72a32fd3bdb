"""Lines of `events.jsonl`, as files come back to us: cut off, with flipped bits, or written by somebody else.

A run goes on where one of its lines is damaged, and its figures are made of those that are not. Nothing is hidden: what
cannot be read is an event of its own, `damaged`, with the number of its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

DAMAGED = "damaged"
SCORED = ("balanced_accuracy", "loss_test", "jain")  # what an evaluation tells beside its accuracy
SPENT = ("bytes_up", "bytes_down", "bytes_p2p", "client_updates", "time")  # what every round tells

Event = dict[str, Any]


def read_event(line: bytes) -> Event | None:
    """Read a line; None where it is no event, or one of a round whose figures are no numbers."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(kind := event.get("event"), str):
        return None
    return event if kind != "round" or _is_round(event) else None


def read_events(data: bytes) -> list[Event]:
    """Read the whole lines; the last one may be half written."""
    lines = enumerate(data[: data.rfind(b"\n") + 1].split(b"\n")[:-1], 1)
    return [read_event(line) or {"event": DAMAGED, "line": number} for number, line in lines]


def describe_damage(events: Iterable[Mapping[str, Any]]) -> str | None:
    """Say which lines were damaged; None where none was."""
    lines = [str(event["line"]) for event in events if event["event"] == DAMAGED]
    if not lines:
        return None
    which = (
        f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(lines[:5])}{', ...' if len(lines) > 5 else ''}"
    )
    return f"{which} of events.jsonl cannot be read; what stood there is missing from curves and figures"


def _is_round(event: Event) -> bool:
    numbers = all(isinstance(event.get(name), int | float | None) for name in ("accuracy", *SCORED, *SPENT))
    return isinstance(event.get("round"), int) and event["round"] >= 0 and numbers

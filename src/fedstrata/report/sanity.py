"""What of a run folder can be shown: files may be damaged, of another version, or somebody's who means no good."""

from __future__ import annotations

from math import isfinite
from typing import Any

from fedstrata import __version__

TABLES = ("recall", "labels", "client_accuracy", "client_deciles")  # a round has a list of each
SHOWN = (  # figures of a summary
    *("accuracy", "balanced_accuracy", "worst10", "best_accuracy", "accuracy_last10", "accuracy_last10_std"),
    *("bytes_up", "bytes_down", "bytes_p2p", "client_updates", "time"),
)
DEEPEST = 12  # of tables in events


def fits_summary(name: str, value: Any) -> bool:
    """Say whether a value can stand in a summary under this name; what else is there is not shown."""
    if value is None:
        return True
    kind = {"stopped": str, "remarks": list, "metrics": dict, "privacy": dict}.get(name)
    return isinstance(value, kind) if kind else is_sane(value) and (name not in SHOWN or _is_number(value))


def has_lists(event: dict[str, Any]) -> bool:
    """Say whether the lists of a round, where it has any, are lists of numbers."""
    return all(isinstance(event.get(name, []), list) and all(map(_is_entry, event.get(name, []))) for name in TABLES)


def _is_entry(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def is_sane(value: Any, depth: int = 0) -> bool:
    """Say whether all whole numbers inside are such as arrays can hold, and nothing lies deeper than we write."""
    if isinstance(value, int):
        return abs(value) < 1 << 62
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < DEEPEST and all(
        is_sane(one, depth + 1) for one in inside if isinstance(one, int | dict | list) and not isinstance(one, bool)
    )


def newer(version: object) -> bool:
    """Say whether a version is newer than this one."""

    def parts(text: str) -> list[int]:
        return [int("".join(filter(str.isdigit, part)) or 0) for part in text.split(".")[:3]]

    return parts(str(version)) > parts(__version__)

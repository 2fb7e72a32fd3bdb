"""What a benchmark tells: rows with a name, a value, its unit, a goal, and whether it was met."""

from __future__ import annotations

from typing import Any


def row(
    name: str, value: float | None, unit: str, at_most: float | None = None, at_least: float | None = None
) -> dict[str, Any]:
    """Return a row with one goal or none.

    `met` is None where there is a goal and nothing could be measured. Without a goal nothing is missed, so it is True:
    whoever looks for what was missed need not look at goals.
    """
    goal = at_least if at_most is None else at_most
    met: bool | None = True
    if goal is not None:
        met = None if value is None else bool(value >= goal if at_most is None else value <= goal)
    return {"name": name, "value": None if value is None else float(value), "unit": unit, "goal": goal, "met": met}

"""Figures as pandas data frames. pandas is not needed for anything else, and may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from fedstrata.core.errors import RequestError


def make_frame(columns: Mapping[str, Sequence[Any]], index: str | None = None) -> Any:
    """Return a data frame; `index` names the column that is its index."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise RequestError('to_pandas needs pandas, which is not installed: pip install "fedstrata[pandas]"') from None
    frame = pandas.DataFrame(dict(columns))
    return frame if index is None else frame.set_index(index)


def columns_of_rounds(events: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return what every round told as a number, by name; None where a round does not tell it."""
    rounds = [event for event in events if event["event"] == "round"]
    rows = [{**event, "seconds": event.get("wall", {}).get("seconds")} for event in rounds]
    kept = {key: None for row in rows for key, value in row.items() if isinstance(value, int | float)}
    return {"round": [row["round"] for row in rows], **{key: [row.get(key) for row in rows] for key in kept}}

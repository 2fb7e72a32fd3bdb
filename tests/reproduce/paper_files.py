"""The files of the papers' tables, and what one becomes with settings laid over all its rows and conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedstrata
from fedstrata.config import tables
from fedstrata.runs.compare.design import Design
from fedstrata.runs.compare.request import ComparisonRequest
from fedstrata.runs.compare.settings import Condition, Entry, NamedOverrides

FILES = sorted((Path(fedstrata.__file__).parent / "reproduce/papers").rglob("*.toml"))
BY_ID = {path.stem: path for path in FILES}


def request(
    table: Mapping[str, Any], over: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], ComparisonRequest]:
    """Return the experiment of a file and its comparison, with tables laid over both.

    What is laid over wins over rows and conditions. But a table `data` with a name stands in place of the file's, under
    what conditions set; a table `model` with a name in place of the file's and of what rows choose; and tables of
    `condition` in place of those of their names.
    """
    over = dict(over or {})
    source = {key: value for key, value in table.items() if key not in ("compare", "paper")}
    asked = ComparisonRequest.of(conditions=over.pop("condition", ())).on_top_of(
        ComparisonRequest.from_table(table["compare"])
    )
    if "name" in over.get("data", ()):
        source["data"] = over.pop("data")
    gone = ["model"] if "name" in over.get("model", ()) else []
    source |= {section: over.pop(section) for section in gone}
    flat = tables.flatten(over)
    ours = {
        key: value for key, value in flat.items() if key.split(".")[0] == "data"
    }  # conditions set it, rows must not
    rest = {key: value for key, value in flat.items() if key not in ours}
    conditions = [NamedOverrides(c.name, _laid(c.overrides, ours)) for c in asked.list_conditions()]
    rows = [NamedOverrides(e.name, _laid(e.overrides, rest, gone)) for e in asked.entries()]
    return source, ComparisonRequest(variants=rows, conditions=conditions, seeds=1, metric=asked.metric)


def design(table: Mapping[str, Any], over: Mapping[str, Any] | None = None) -> Design:
    """Build and check every row under every condition; no data are read."""
    source, asked = request(table, over)
    rows = [Entry(one.name, one.overrides) for one in asked.variants]
    built = Design(source, {}, rows, [Condition(one.name, one.overrides) for one in asked.conditions], [0])
    built.check()
    return built


def _laid(own: Mapping[str, Any], over: Mapping[str, Any], gone: Sequence[str] = ()) -> dict[str, Any]:
    without = (*over, *gone)
    kept = {key: value for key, value in own.items() if not any(f"{key}.".startswith(f"{k}.") for k in without)}
    return {**kept, **over}

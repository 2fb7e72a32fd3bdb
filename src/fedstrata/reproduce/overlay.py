"""Settings laid over all rows and conditions of a comparison file: another reading of a paper, or a tiny version.

What is laid over wins over what rows and conditions set. But a table `data` with a name stands in place of the file's,
under what conditions set; a table `model` with a name in place of the file's and of what rows choose; and tables of
`condition` and `variant` in place of the columns and rows of their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedstrata.config.tables import flatten
from fedstrata.core.errors import unknown_name
from fedstrata.runs.compare.request import ComparisonRequest
from fedstrata.runs.compare.settings import NamedOverrides, read_settings


def lay_over(
    table: Mapping[str, Any], over: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], ComparisonRequest]:
    """Return the experiment of a file and its comparison, with tables laid over both."""
    over = dict(over or {})
    other = {row.name: row for row in read_settings(over.pop("variant", ()), "variant")}
    source = {key: value for key, value in table.items() if key not in ("compare", "paper")}
    asked = ComparisonRequest.of(conditions=over.pop("condition", ())).on_top_of(
        ComparisonRequest.from_table(table["compare"])
    )
    if "name" in over.get("data", ()):
        source["data"] = over.pop("data")
    gone = ["model"] if "name" in over.get("model", ()) else []
    source |= {section: over.pop(section) for section in gone}
    flat = flatten(over)
    data = {key: value for key, value in flat.items() if key.split(".")[0] == "data"}  # rows must not set it
    rest = {key: value for key, value in flat.items() if key not in data}
    conditions = [NamedOverrides(c.name, _laid(c.overrides, data)) for c in asked.list_conditions()]
    known = {row.name: NamedOverrides(row.name, row.overrides) for row in asked.entries()}
    if strange := sorted(other.keys() - known.keys()):
        raise unknown_name("variant", strange[0], known)
    rows = [NamedOverrides(e.name, _laid(e.overrides, rest, gone)) for e in (known | other).values()]
    return source, ComparisonRequest(variants=rows, conditions=conditions, seeds=asked.seeds, metric=asked.metric)


def _laid(own: Mapping[str, Any], over: Mapping[str, Any], gone: Sequence[str] = ()) -> dict[str, Any]:
    without = (*over, *gone)
    kept = {key: value for key, value in own.items() if not any(f"{key}.".startswith(f"{k}.") for k in without)}
    return {**kept, **over}

"""In which settings runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedstrata.config.tables import flatten
from fedstrata.report.run_data import RunData

HARMLESS = (
    "name",
    "method",
    "engine",
    "train.seed",
    "track",
)  # what is compared, drawn, or only says how it is executed


def differing(runs_data: Sequence[RunData]) -> dict[str, list[Any]]:
    """Return the keys whose values are not the same in all runs, with the value of each run; None: not set."""
    each = [flatten(run_data.experiment) for run_data in runs_data]
    keys = dict.fromkeys(key for own in each for key in own)
    found = {key: [own.get(key) for own in each] for key in keys}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}


def unlike_settings(runs_data: Sequence[RunData]) -> list[str]:
    """Return the keys that forbid to rank runs: all that differ beside the method and the seed."""
    return [key for key in differing(runs_data) if not any(key == own or key.startswith(f"{own}.") for own in HARMLESS)]

"""Settings of runs: what makes a run other than the default one, and where runs differ from each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from fedstrata.config.experiment import Experiment

Settings = dict[str, Any]  # by key with dots
OWN_COLUMNS = ("name", "data.name", "train.rounds", "train.seed")  # what the list shows anyway


def flatten(table: Mapping[str, Any], prefix: str = "") -> Settings:
    """Return the tables of an experiment by key with dots; lists stay whole.

    Examples
    --------
    >>> flatten({"train": {"lr": 0.1, "stop": {}}, "method": {"corrections": [{"kind": "prox"}]}})
    {'train.lr': 0.1, 'method.corrections': [{'kind': 'prox'}]}
    """
    found: Settings = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """Return a value of TOML as a page can read it: JSON has no infinite numbers, and no dates."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    known = value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    return value if known else str(value)


def unusual(table: Mapping[str, Any]) -> Settings:
    """Return the settings that are not the defaults, without those of the method, which its name tells."""
    usual = defaults()
    return {
        key: value
        for key, value in flatten(table).items()
        if usual.get(key) != value and key not in OWN_COLUMNS and not key.startswith("method.")
    }


@cache
def defaults() -> Settings:
    """Return what holds where nobody says otherwise."""
    return flatten(Experiment.of(None).dump())

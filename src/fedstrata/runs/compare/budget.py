"""Equal budgets: what `--budget bytes=50MB` means in an experiment."""

from __future__ import annotations

import re
from typing import Any

from fedstrata.core.errors import RequestError

KEYS = {
    "rounds": "train.rounds",
    "bytes": "train.stop.bytes",
    "client_updates": "train.stop.client_updates",
    "time": "train.stop.time",
}
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(?:e(\d+))?\s*([a-z]*)", re.IGNORECASE)


def overrides(budget: str | None) -> dict[str, Any]:
    """Read a budget and give the keys it sets; `train.rounds` stays the upper bound of the others."""
    if budget is None:
        return {}
    name, _, amount = (part.strip() for part in budget.partition("="))
    found = NUMBER.fullmatch(amount)
    if name not in KEYS or found is None or (found[3] and name != "bytes") or found[3].lower() not in UNITS:
        raise RequestError(
            f'budget = "{budget}" cannot be read; allowed: rounds=100, bytes=50MB, client_updates=2000 or time=3600'
        )
    value = float(found[1]) * 10 ** int(found[2] or 0) * UNITS[found[3].lower()]
    if (name != "time" and value != int(value)) or not value:
        raise RequestError(f'budget = "{budget}" must be a {"" if name == "time" else "whole "}number above 0')
    return {KEYS[name]: value if name == "time" else int(value)}

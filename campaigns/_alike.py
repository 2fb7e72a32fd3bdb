"""Runs methods in the environment that this process was started in, and prints what came of each, as JSON."""

from __future__ import annotations

import json
import locale
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from campaigns._subjects import SHORT, outcome
from fedstrata.core.errors import FedstrataError
from fedstrata.runs.training import train
from fedstrata.testing import tiny_federation


def main(folder: Path, overrides: dict[str, Any], methods: Sequence[str]) -> dict[str, str]:
    """Run."""
    with suppress(locale.Error):  # this machine does not have it: the variables are there all the same
        locale.setlocale(locale.LC_ALL, "")
    found = {}
    for method in methods:
        asked = {**SHORT, "train.clients_per_round": 4, **overrides}
        try:
            train(method=method, overrides=asked, federation=tiny_federation(), out=folder / method, progress=False)
            events, models, told = outcome(folder / method)
        except FedstrataError as error:
            found[method] = f"refused: {error}"
            continue
        found[method] = sha256(json.dumps([_compared(events), models, told]).encode()).hexdigest()
    return found


def _compared(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what says where the run was executed, which differs by what is asked for."""
    return [event for event in events if event["event"] not in ("start", "fallback")]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])))

"""The files of the papers' tables, and what one becomes with settings laid over all its rows and conditions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedstrata
from fedstrata.reproduce.overlay import lay_over
from fedstrata.runs.compare.design import Design
from fedstrata.runs.compare.settings import Condition, Entry

FILES = sorted((Path(fedstrata.__file__).parent / "reproduce/papers").rglob("*.toml"))
BY_ID = {path.stem: path for path in FILES}


def design(table: Mapping[str, Any], over: Mapping[str, Any] | None = None) -> Design:
    """Build and check every row under every condition; no data are read."""
    source, asked = lay_over(table, over)
    rows = [Entry(one.name, one.overrides) for one in asked.variants]
    built = Design(source, {}, rows, [Condition(one.name, one.overrides) for one in asked.conditions], [0])
    built.check()
    return built

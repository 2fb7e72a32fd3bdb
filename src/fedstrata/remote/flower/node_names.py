"""Which node was which site: what nodes said of themselves in runs, kept for `fedstrata deploy status`.

With keys the server knows its sites by their keys; without, a node has nothing but the name it gives.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedstrata.core.storage.files import write_atomically

MOST = 1000  # nodes that are remembered: without keys, a site is a new one whenever it connects


def remember(path: Path, node: int, site: str) -> None:
    """Note a node's name."""
    known = {k: v for k, v in recall(path).items() if k != str(node)} | {str(node): site}
    write_atomically(path, json.dumps(dict(list(known.items())[-MOST:])).encode())


def recall(path: Path) -> dict[str, str]:
    """Return the sites by node; who was met last is last."""
    try:
        known: dict[str, str] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return known

"""A federation beside its runs: what the board shows of one, and may be asked to do. `deploy` knows how."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from threading import Lock
from typing import Any, Protocol

from fedstrata.core.errors import RequestError

MOST = 100  # characters of a run's number or an action


class Console(Protocol):
    """Sites, runs and queue of a federation, and the words of an operator."""

    def look(self) -> Mapping[str, Any]:
        """Return what there is to see, as JSON has it."""

    def order(self, action: str, run: str) -> str:
        """Say something to a run; give what came of it."""


class SharedLook:
    """Looks at a federation once for all browsers that watch."""

    def __init__(self, console: Console, pause: float):
        self._console, self._pause = console, pause
        self._lock, self._due, self._seen = Lock(), 0.0, ""

    def look(self) -> str:
        """Return what there is to see as JSON, looked up unless that has just been done."""
        with self._lock:
            if time.monotonic() >= self._due:
                began = time.monotonic()
                self._seen = json.dumps(self._console.look())
                self._due = began + max(0.9 * self._pause, 2 * (time.monotonic() - began))
            return self._seen

    def order(self, body: bytes) -> str:
        """Do what a browser asks for: an action, and a run by its number."""
        told = json.loads(body)
        action, run = (told.get(key) if isinstance(told, dict) else None for key in ("action", "run"))
        if not all(isinstance(text, str) and len(text) <= MOST for text in (action, run)):
            raise RequestError("an order has an action and a run")
        said = self._console.order(str(action), str(run))
        with self._lock:
            self._due = 0.0
        return said

"""What a site's process says of itself at once, whatever else it is doing: which run it takes part in."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from fedstrata.remote.transport import Answer

STATE = b"fedstrata state\n"  # the request; no other begins so
LATELY = 15.0  # seconds after a request in which a site still counts as busy: the others may take that long


class StatedAnswer:
    """Answers, and says without waiting for its turn whether it does: a stream is one long request."""

    def __init__(self, answer: Answer, about: Callable[[], Mapping[str, Any]]):
        self._answer, self._about = answer, about
        self._under_way, self._latest, self._lock = 0, float("-inf"), threading.Lock()

    def __call__(self, request: bytes) -> bytes:
        """Answer a request."""
        if request == STATE:
            return json.dumps({"busy": self.busy, **self._about()}).encode()
        self._count(1)
        try:
            return self._answer(request)
        finally:
            self._count(-1)

    @property
    def busy(self) -> bool:
        """Whether some run asks something of the site."""
        return self._under_way > 0 or monotonic() < self._latest + LATELY

    def _count(self, more: int) -> None:
        with self._lock:
            self._under_way += more
            self._latest = monotonic()

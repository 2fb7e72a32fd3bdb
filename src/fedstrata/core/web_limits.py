"""What a web server of ours bears from callers whom it does not know: connections that come to the point."""

from __future__ import annotations

import asyncio
from typing import Any

WITHIN = 10.0  # seconds in which a connection makes its next request, or is closed
CONNECTIONS = 1024  # at once; further ones are told to come again


def impatient(protocol: type[Any], within: float = WITHIN) -> type[Any]:
    """Return uvicorn's HTTP protocol with an end for callers who open a connection and do not ask for anything.

    Uvicorn itself waits for the first request, and for the rest of a half-written one, without end.
    """

    class Impatient(protocol):  # type: ignore[misc]
        """Looks now and then whether anything was asked since the last look."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._asked_last = None
            self._next_look = asyncio.get_running_loop().call_later(within, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            self._next_look.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            answered = self.cycle is None or self.cycle.response_complete
            if answered and self.cycle is self._asked_last:
                self.transport.abort()
                return
            self._asked_last = self.cycle
            self._next_look = asyncio.get_running_loop().call_later(within, self._look)

    return Impatient

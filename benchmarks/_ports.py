"""A port for a server that this machine starts for a while."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

LOWEST, HIGHEST = 10_000, 30_000  # below those from which systems take the other end of every connection


def free_port() -> int:
    """Return a port that is free, and stays so: no connection is given it before it is listened at."""
    while True:
        port = random.SystemRandom().randrange(LOWEST, HIGHEST)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port

"""Parties of a simulation: all of them live here, and draw their secrets from the run's seed.

So a run can be repeated and resumed, and hides nothing from whoever knows the seed. At real sites every party draws
from its own machine.
"""

from __future__ import annotations

from itertools import count

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.privacy.agreement import derive
from fedstrata.privacy.frames import JOB, SERVER
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory

MOST = 100_000  # clients that are given keys


def secrets(streams: Streams, purpose: str, party: int, round: int = -1, step: int = 0) -> Entropy:
    """Give a party a source of secret bytes, for one purpose at one time."""
    key, draw = streams.key(f"secret {purpose}", round, step, party).to_bytes(16, "little"), count()
    return lambda size: derive(key, b"simulated entropy", b"%d" % next(draw), size)


def job_of(streams: Streams, purpose: str, round: int, step: int) -> bytes:
    """Return a protocol run its number."""
    return streams.key(f"job {purpose}", round, step).to_bytes(JOB, "little")


def identities(streams: Streams, clients: int) -> tuple[Identity, list[Identity], KeyDirectory]:
    """Return the server and every client a key, and the roll of all of them."""
    if clients > MOST:
        raise RequestError(f"{clients} clients: masked sums can be simulated among at most {MOST}")
    server = Identity.new(secrets(streams, "identity", SERVER))
    everybody = [Identity.new(secrets(streams, "identity", client)) for client in range(clients)]
    return server, everybody, KeyDirectory.of(server, everybody)

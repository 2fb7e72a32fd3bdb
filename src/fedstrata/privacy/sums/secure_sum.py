"""A whole secure sum in one process, for simulations; the parties exchange bytes, as they would over a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedstrata.errors import RequestError
from fedstrata.privacy.identity import Entropy, Identity, Roll
from fedstrata.privacy.sums.fixed_point import NARROW, Encoding
from fedstrata.privacy.sums.member import Member
from fedstrata.privacy.sums.protocol import Task
from fedstrata.privacy.sums.summing import Summing


@dataclass(frozen=True)
class Parties:
    """Everybody's keys, and where each client's secrets come from: in one place in a simulation only."""

    server: Identity
    clients: Mapping[int, Identity]
    roll: Roll
    entropy: Callable[[int], Entropy]


@dataclass(frozen=True)
class Summed:
    """A weighted sum, and the bytes that each client sent and received for it."""

    total: np.ndarray  # float64
    up: Mapping[int, int]
    down: Mapping[int, int]


def secure_sum(
    values: Mapping[int, Any],
    weights: Mapping[int, float],
    asked: Sequence[int],
    parties: Parties,
    job: bytes,
    encoding: Encoding = NARROW,
    needed: int | None = None,
) -> Summed:
    """Sum flat arrays times weights of 0 to 1. Clients that are asked and have no array go missing before their input.

    A job's number serves once: it, and the entropy, must be other ones for the next sum.
    """
    if not values or not set(values) <= set(asked).intersection(weights):
        raise RequestError("a secure sum is over arrays of clients that were asked and have a weight, at least of some")
    size = len(next(iter(values.values())))
    task = Task(job, tuple(sorted(asked)), size, parties.roll.digest, encoding, needed)
    server, wire = Summing(task, parties.server, parties.roll), _Wire()
    members = {
        client: Member(task, client, parties.clients[client], parties.roll, parties.entropy(client))
        for client in task.members
    }
    for client, member in members.items():
        server.advertised(client, wire.sent(client, member.advertise()))
    for client, keys in server.keys().items():
        server.shared(client, wire.sent(client, members[client].share(wire.received(client, keys))))
    for client, delivery in server.deliveries(dict.fromkeys(asked, 0.0) | dict(weights)).items():
        wire.received(client, delivery)
        if client in values:
            server.masked(client, wire.sent(client, members[client].masked(delivery, values[client])))
    for client, survivors in server.survivors().items():
        server.agreed(client, wire.sent(client, members[client].agree(wire.received(client, survivors))))
    for client, agreements in server.agreements().items():
        server.revealed(client, wire.sent(client, members[client].reveal(wire.received(client, agreements))))
    return Summed(server.total(), dict(wire.up), dict(wire.down))


class _Wire:
    """Counts what goes over it."""

    def __init__(self) -> None:
        self.up: Counter[int] = Counter()
        self.down: Counter[int] = Counter()

    def sent(self, client: int, data: bytes) -> bytes:
        self.up[client] += len(data)
        return data

    def received(self, client: int, data: bytes) -> bytes:
        self.down[client] += len(data)
        return data

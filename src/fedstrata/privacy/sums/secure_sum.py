"""A whole secure sum in one process, for simulations; the parties exchange bytes, as they would over a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory
from fedstrata.privacy.sums.fixed_point import NARROW, Encoding
from fedstrata.privacy.sums.member import SumMember
from fedstrata.privacy.sums.protocol import SumTask
from fedstrata.privacy.sums.summing import Summing


@dataclass(frozen=True)
class Parties:
    """Everybody's keys, and where each client's secrets come from: in one place in a simulation only."""

    server: Identity
    clients: Mapping[int, Identity]
    key_directory: KeyDirectory
    entropy: Callable[[int], Entropy]


@dataclass(frozen=True)
class SecureSum:
    """A weighted sum, and the bytes that each client sent and received for it."""

    total: np.ndarray  # float64
    up: Mapping[int, int]
    down: Mapping[int, int]


Carry = Callable[[str, Mapping[int, bytes]], Mapping[int, bytes]]  # a step, and what it asks of whom -> the replies


def carry_out(
    server: Summing,
    asked: Sequence[int],
    weights: Mapping[int, float],
    carry: Carry,
    refuse: Callable[[int, RefusedError], None],
) -> np.ndarray:
    """Play a sum, whatever carries its messages; who does not reply, or not as it should, is missing from then on."""

    def take(taken: Callable[[int, bytes], None], replies: Mapping[int, bytes]) -> None:
        for client, reply in replies.items():
            try:
                taken(client, reply)
            except RefusedError as error:
                refuse(client, error)

    take(server.advertised, carry("advertise", dict.fromkeys(asked, b"")))
    take(server.shared, carry("share", server.keys()))
    take(server.masked, carry("masked", server.deliveries(weights)))
    take(server.agreed, carry("agree", server.survivors()))
    take(server.revealed, carry("reveal", server.agreements()))
    return server.total()


def act(member: SumMember, step: str, message: bytes, values: Any) -> bytes:
    """Let a member act on the message of a step."""
    acts: dict[str, Callable[[], bytes]] = {
        "advertise": member.advertise,
        "share": lambda: member.share(message),
        "masked": lambda: member.masked(message, values),
        "agree": lambda: member.agree(message),
        "reveal": lambda: member.reveal(message),
    }
    if step not in acts:
        raise RefusedError(f"a secure sum has no step {step!r}")
    return acts[step]()


def secure_sum(
    values: Mapping[int, Any],
    weights: Mapping[int, float],
    asked: Sequence[int],
    parties: Parties,
    job: bytes,
    encoding: Encoding = NARROW,
    needed: int | None = None,
) -> SecureSum:
    """Sum flat arrays times weights of 0 to 1. Clients that are asked and have no array go missing before their input.

    A job's number serves once: it, and the entropy, must be other ones for the next sum.
    """
    if not values or not set(values) <= set(asked):
        raise RequestError("a secure sum is over arrays of clients that were asked, and at least of some")
    task = SumTask(
        job, tuple(sorted(asked)), len(next(iter(values.values()))), parties.key_directory.digest, encoding, needed
    )
    members = {
        client: SumMember(task, client, parties.clients[client], parties.key_directory, parties.entropy(client))
        for client in task.members
    }
    up: Counter[int] = Counter()
    down: Counter[int] = Counter()

    def carry(step: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        replies = {}
        for client, message in messages.items():
            down[client] += len(message)
            if step == "masked" and client not in values:
                continue
            replies[client] = act(members[client], step, message, values.get(client))
            up[client] += len(replies[client])
        return replies

    server = Summing(task, parties.server, parties.key_directory)
    given = {client: weights.get(client, 0.0) for client in asked}
    total = carry_out(server, task.members, given, carry, _never)
    return SecureSum(total, dict(up), dict(down))


def _never(client: int, error: RefusedError) -> None:
    """Raise: in one process every message is right."""
    raise error

"""A secure sum from its first message to its last, whatever carries them; and one in which all parties live here.

They exchange bytes in one process as they would over a network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.privacy.frames import Refuse, RefusedError, never
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory
from fedstrata.privacy.sums.fixed_point import NARROW, Encoding
from fedstrata.privacy.sums.member import SumMember
from fedstrata.privacy.sums.protocol import SumTask, magnitude
from fedstrata.privacy.sums.summing import Summing

Carry = Callable[[str, Mapping[int, bytes]], Mapping[int, bytes]]  # a step, and what it asks of whom -> the replies


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


def carry_out(
    server: Summing, members: Sequence[int], weights: Mapping[int, float], carry: Carry, refuse: Refuse
) -> SecureSum:
    """Run a sum over the members that have a weight; the others go missing before their input.

    Who does not reply, or not as it should, is missing from then on.
    """
    up: Counter[int] = Counter()
    down: Counter[int] = Counter()

    def exchange(step: str, messages: Mapping[int, bytes], take: Callable[[int, bytes], None]) -> None:
        down.update({client: len(message) for client, message in messages.items()})
        going = {client: m for client, m in messages.items() if step != "masked" or client in weights}
        for client, reply in carry(step, going).items():
            up[client] += len(reply)
            try:
                take(client, reply)
            except RefusedError as error:
                refuse(client, error)

    all_weights = {member: weights.get(member, 0.0) for member in members}
    exchange("advertise", dict.fromkeys(members, b""), server.take_keys)
    exchange("share", server.pass_keys(), server.take_shares)
    exchange("masked", server.deliver_shares(all_weights), server.add_words)
    exchange("agree", server.name_survivors(), server.take_agreement)
    exchange("reveal", server.pass_agreements(), server.take_reveal)
    return SecureSum(server.total(), dict(up), dict(down))


def act(member: SumMember, step: str, message: bytes, values: Any) -> bytes:
    """Let a member act on the message of a step."""
    acts: dict[str, Callable[[], bytes]] = {
        "advertise": member.advertise,
        "share": lambda: member.share(message),
        "masked": lambda: member.mask(message, values),
        "agree": lambda: member.agree(message),
        "reveal": lambda: member.reveal(message),
    }
    if step not in acts:
        raise RefusedError(f"a secure sum has no step {step!r}")
    return acts[step]()


def in_memory(task: SumTask, parties: Parties, values: Mapping[int, Any]) -> Carry:
    """Return what carries messages to members that live here, each with its own array, if it has one."""
    members = {
        client: SumMember(task, client, parties.clients[client], parties.key_directory, parties.entropy(client))
        for client in task.members
    }

    def carry(step: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        return {client: act(members[client], step, message, values.get(client)) for client, message in messages.items()}

    return carry


def secure_sum(
    values: Mapping[int, Any],
    weights: Mapping[int, float],
    asked: Sequence[int],
    parties: Parties,
    job: bytes,
    encoding: Encoding = NARROW,
) -> SecureSum:
    """Sum flat arrays times weights of 0 to 1. Clients that are asked and have no array go missing before their input.

    A job's number serves once: it, and the entropy, must be other ones for the next sum.
    """
    if not values or not set(values) <= set(asked):
        raise RequestError("a secure sum is over arrays of clients that were asked, and at least of some")
    given = {client: weights.get(client, 0.0) for client in values}
    members, size = tuple(sorted(asked)), len(next(iter(values.values())))
    magnitudes = tuple(magnitude(given.get(member, 0.0)) for member in members)
    task = SumTask(job, members, size, parties.key_directory.digest, encoding, magnitudes=magnitudes)
    server = Summing(task, parties.server, parties.key_directory)
    return carry_out(server, task.members, given, in_memory(task, parties, values), never)

"""What the server writes down of a run: who took part, and what it cost.

Bytes are those that messages declare; what it costs to note a client does not depend on how many others there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedstrata.core.messages import Report, Tag, Task, value_bytes
from fedstrata.core.steps import Step
from fedstrata.server.metrics import fairness


@dataclass
class Traffic:
    """Bytes that crossed a border, by direction, and client updates that trained."""

    bytes_up: int = 0
    bytes_down: int = 0
    bytes_p2p: int = 0
    client_updates: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes in all directions."""
        return self.bytes_up + self.bytes_down + self.bytes_p2p

    def add(self, other: Traffic) -> None:
        """Add what a step cost."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def count_cost(
    step: Step, size: int, tasks: Sequence[Task], received: Sequence[Report], overhead_bytes: tuple[int, int] = (0, 0)
) -> Traffic:
    """Charge a step whose model message has a size; a fused step as if its single steps had been run.

    `overhead_bytes` is what the engine's own messages took, up and down.
    """
    traffic = Traffic(*overhead_bytes)
    if step.fused is not None and tasks and not all(r.finite for r in received):
        return traffic  # it came to nothing, and its single steps will be run instead
    client_updates = step.count_updates([r.client for r in received])
    traffic.bytes_down += sum(r.received * n for r, n in zip(received, client_updates, strict=True))
    if step.combine:
        traffic.client_updates += sum(step.count_updates([task.client for task in tasks]))
    if step.fused is not None:
        down, up, across = (size * models for models in step.fused.handed)
        traffic.bytes_down += down + step.fused.told[0]
        traffic.bytes_up += (
            up + step.fused.told[1] + sum(r.nbytes * n for r, n in zip(received, client_updates, strict=True))
        )
        traffic.bytes_p2p += across
        return traffic
    if step.source == "server":
        traffic.bytes_down += size * len(tasks)
    else:
        traffic.bytes_p2p += size * len(tasks)
    traffic.bytes_down += sum(value_bytes(task.config) for task in tasks)
    # A model handed to a peer is charged when the peer receives it; only the numbers go to the server.
    traffic.bytes_up += sum(r.nbytes if step.sink == "server" else value_bytes(r.metrics) for r in received)
    return traffic


@dataclass
class ParticipationLog:
    """One line for each client whose report was ever accepted, in order of id.

    With running sums of the client updates.
    """

    clients: int  # all there are
    ids: np.ndarray
    client_updates: np.ndarray  # those that made a model
    accepted: np.ndarray  # [lines, 2]: round and step of the last report that counted
    durable: np.ndarray  # the same as of the last checkpoint; -1 for none
    total: int = 0
    squares: int = 0

    @classmethod
    def of(cls, clients: int) -> ParticipationLog:
        """Return a participation log without a line."""
        none = np.zeros(0, dtype=np.int64)
        return cls(clients, none, none, none.reshape(0, 2), none.reshape(0, 2))

    def accept(self, clients: Sequence[int], tag: Tag) -> None:
        """Note that the reports of a step count."""
        lines, known = self._find(clients)
        if not known.all():
            new = np.sort(np.array(clients, dtype=np.int64)[~known])
            at = np.searchsorted(self.ids, new)
            self.ids, self.client_updates = np.insert(self.ids, at, new), np.insert(self.client_updates, at, 0)
            self.accepted, self.durable = (np.insert(tags, at, -1, axis=0) for tags in (self.accepted, self.durable))
            lines, _ = self._find(clients)
            self.clients = max(self.clients, int(new[-1]) + 1)  # at real sites, somebody may have joined
        self.accepted[lines] = tag

    def count(self, clients: Sequence[int], client_updates: Sequence[int]) -> None:
        """Add client updates of clients whose reports were accepted."""
        lines, more = self._find(clients)[0], np.array(client_updates, dtype=np.int64)
        before = self.client_updates[lines]
        self.client_updates[lines] = before + more
        self.total += int(more.sum())
        self.squares += int((more * (2 * before + more)).sum())

    def tags(self, clients: Sequence[int]) -> list[tuple[Tag | None, Tag | None]]:
        """Return each one's last report that counted, and the one that the last checkpoint relies on."""
        lines, known = self._find(clients)
        tags = np.full((len(clients), 4), -1)
        tags[known] = np.hstack([self.accepted[lines[known]], self.durable[lines[known]]])
        return [(_tag(a, b), _tag(c, d)) for a, b, c, d in tags.tolist()]

    def _find(self, clients: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return where clients stand, or would stand, and whether they do."""
        own = np.array(clients, dtype=np.int64)
        lines = np.searchsorted(self.ids, own)
        known = lines < len(self.ids)
        known[known] = self.ids[lines[known]] == own[known]
        return lines, known

    def secure(self) -> None:
        """Rely on what is accepted now: it is being saved."""
        self.durable = self.accepted.copy()

    @property
    def participation(self) -> np.ndarray:
        """How often each client took part, [N]."""
        whole = np.zeros(self.clients, dtype=np.int64)
        whole[self.ids] = self.client_updates
        return whole

    @property
    def jain(self) -> float:
        """How fair that is so far."""
        return fairness(self.total, self.squares, self.clients)


def _tag(round: int, step: int) -> Tag | None:
    return None if round < 0 else (round, step)

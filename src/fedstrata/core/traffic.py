"""What a step costs: bytes by direction, declared by its messages, and client updates that trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedstrata.core.messages import Report, Task, value_bytes
from fedstrata.core.server_parts import Step


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
    """Charge a step whose model message has a size; a fused step as if its single steps had been played.

    `overhead_bytes` is what the engine's own messages took, up and down.
    """
    traffic = Traffic(*overhead_bytes)
    if step.fused is not None and tasks and not all(r.finite for r in received):
        return traffic  # it came to nothing, and its single steps will be played instead
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

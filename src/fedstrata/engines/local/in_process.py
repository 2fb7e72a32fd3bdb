"""One lane in this process: plain PyTorch, easy to debug."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from fedstrata.clientside import Local
from fedstrata.federation import Federation
from fedstrata.lane import Lane
from fedstrata.messages import Report, Task, Tensors


class InProcess:
    """Visits one client after another, here."""

    def __init__(self, local: Local, federation: Federation, device: str = "cpu"):
        self._federation = federation
        largest = int(federation.train_split.sizes.max())
        self._lane = Lane(local, federation.train.x, federation.train.y, largest, device)

    def work(self, tasks: Sequence[Task], keeps: Mapping[int, Tensors]) -> list[tuple[Report, Tensors | None]]:
        """Make all visits in order."""
        answers: list[tuple[Report, Tensors | None]] = []
        with one_thread():
            for task in tasks:
                client = self._federation.at(task.round).client(task.client)
                old = keeps.get(task.client, {})
                try:
                    report, new = self._lane.visit(client, task, old)
                except Exception as error:
                    error.add_note(f"while client {task.client} did {task.kind!r} in round {task.round + 1}")
                    raise
                answers.append((report, None if new is old or not new else {k: t.cpu() for k, t in new.items()}))
        return answers

    def close(self) -> None:
        """Nothing to end."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Work as every lane does: how sums are cut among threads changes their last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

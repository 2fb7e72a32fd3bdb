"""Where visits are made in one process: a lane, and a flock beside it for clients that are trained at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from fedstrata.client.trainer import Lane
from fedstrata.client.vmapped import Flock
from fedstrata.core.batch_norm import Meeting
from fedstrata.core.client_parts import Client, Local
from fedstrata.core.messages import Report, Task, Tensors
from fedstrata.engines.local.traced_step import Tracer

SEATS = 64  # most clients that are trained at once
Visiting = tuple[Client, Task, Tensors]  # who, what, and the client's own state
Answer = tuple[Report, Tensors | None]  # new state: None where it did not change


class Bench:
    """Makes visits one after another, or those of a group at once; `give_up` hears why that is not possible."""

    def __init__(
        self,
        local: Local,
        x: Tensor,
        y: Tensor,
        largest: int,
        fastest: float = 1.0,
        device: str = "cpu",
        pad: bool = False,
        give_up: Callable[[str], None] = lambda _: None,
    ):
        self._made_of = local, x, y, largest, device
        self._fastest, self._give_up, self._able = fastest, give_up, True
        self.record: Callable[[Flock], Callable[[int], None]] | None = None  # how an engine has steps replayed
        self.lane = Lane(*self._made_of, pad=pad, fastest=fastest)

    def visits(self, group: Sequence[Visiting]) -> list[Answer]:
        """Make the visits of a group."""
        return self.begin(group)()

    def begin(self, group: Sequence[Visiting]) -> Callable[[], list[Answer]]:
        """Submit the work of a group, and give a function that collects the answers."""
        if len(group) == 1:
            with _named(group[0][1]):
                collect = self.lane.begin(*group[0])
            return lambda: [_answer(*collect(), group[0][2])]
        if self._able:
            try:
                made = self.flock.visit(*map(list, zip(*group, strict=True)))
                return lambda: [_answer(*visit, old) for visit, (_, _, old) in zip(made, group, strict=True)]
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever cannot be mapped over clients; one by one, the right one is named
                self._able = False
                self._give_up(f"clients are trained one by one: {str(error).strip().splitlines()[0]}")
        answers = [self.visit(*one) for one in group]
        return lambda: answers

    def visit(self, client: Client, task: Task, keep: Tensors, meeting: Meeting | None = None) -> Answer:
        """Make one visit."""
        with _named(task):
            return _answer(*self.lane.visit(client, task, keep, meeting), keep)

    @cached_property
    def flock(self) -> Flock:
        """Seats, made when they are first needed; batches of different clients are of one width."""
        padded = self.lane if self.lane.pad else Lane(*self._made_of, pad=True, fastest=self._fastest)
        flock = Flock(padded, SEATS)
        flock.recorder = Tracer(flock, self._give_up) if self.record is None else self.record(flock)
        return flock


@contextmanager
def _named(task: Task) -> Iterator[None]:
    """Say whose visit it was that failed."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while client {task.client} did {task.kind!r} in round {task.round + 1}")
        raise


def _answer(report: Report, new: Tensors, old: Tensors) -> Answer:
    return report, None if new is old or not new else new

"""Where client updates are made in one process: a worker, and a vmapped trainer beside it for clients that are trained at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from fedstrata.client.trainer import Trainer
from fedstrata.client.vmapped import VmappedTrainer
from fedstrata.core.batch_norm import AllReduce
from fedstrata.core.client_parts import Client, ClientPlan
from fedstrata.core.messages import Report, Task, Tensors
from fedstrata.engines.local.traced_step import Tracer

MOST_REPLICAS = 64  # most clients that are trained at once
Assignment = tuple[Client, Task, Tensors]  # who, what, and the client's own state
Answer = tuple[Report, Tensors | None]  # new state: None where it did not change


class Worker:
    """Makes client updates one after another, or those of a group at once; `give_up` hears why that is not possible."""

    def __init__(
        self,
        local: ClientPlan,
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
        self.record: Callable[[VmappedTrainer], Callable[[int], None]] | None = None  # how an engine has steps replayed
        self.trainer = Trainer(*self._made_of, pad=pad, fastest=fastest)

    def run_group(self, group: Sequence[Assignment]) -> list[Answer]:
        """Make the client updates of a group."""
        return self.begin(group)()

    def begin(self, group: Sequence[Assignment]) -> Callable[[], list[Answer]]:
        """Submit the work of a group, and give a function that collects the answers."""
        if len(group) == 1:
            with _named(group[0][1]):
                collect = self.trainer.begin(*group[0])
            return lambda: [_answer(*collect(), group[0][2])]
        if self._able:
            try:
                made = self.vmapped.run_tasks(*map(list, zip(*group, strict=True)))
                return lambda: [_answer(*context, old) for context, (_, _, old) in zip(made, group, strict=True)]
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever cannot be mapped over clients; one by one, the right one is named
                self._able = False
                self._give_up(f"clients are trained one by one: {str(error).strip().splitlines()[0]}")
        answers = [self.run_task(*one) for one in group]
        return lambda: answers

    def run_task(
        self, client: Client, task: Task, client_state: Tensors, all_reduce: AllReduce | None = None
    ) -> Answer:
        """Make one client update."""
        with _named(task):
            return _answer(*self.trainer.run_task(client, task, client_state, all_reduce), client_state)

    @cached_property
    def vmapped(self) -> VmappedTrainer:
        """Seats, made when they are first needed; batches of different clients are of one width."""
        padded = self.trainer if self.trainer.pad else Trainer(*self._made_of, pad=True, fastest=self._fastest)
        vmapped = VmappedTrainer(padded, MOST_REPLICAS)
        vmapped.recorder = Tracer(vmapped, self._give_up) if self.record is None else self.record(vmapped)
        return vmapped


@contextmanager
def _named(task: Task) -> Iterator[None]:
    """Say whose client update it was that failed."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while client {task.client} did {task.kind!r} in round {task.round + 1}")
        raise


def _answer(report: Report, new: Tensors, old: Tensors) -> Answer:
    return report, None if new is old or not new else new

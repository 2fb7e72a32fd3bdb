"""A worker runs tasks in one process: with a trainer, and a vmapped one beside it for clients that are trained at once.

Groups are made before work is dealt to workers and do not depend on them: any number of workers gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.client.trainer import Trainer
from fedstrata.client.vmapped import VmappedTrainer
from fedstrata.core.batch_norm import AllReduce
from fedstrata.core.client_parts import Client, ClientPlan
from fedstrata.core.messages import Report, Task, Tensors
from fedstrata.engines.local.traced_step import Tracer

MOST_REPLICAS = 64  # most clients that are trained at once
TINY = 2e6  # multiplications of a batch below which a step's cost is mostly its overhead, on a core
TINY_ON_GPU = 5e6
WORTH_A_STEP = 8  # clients that a group should have at least
SMALL = 200_000  # parameters above which replicas take more memory than they are worth
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

    def submit(self, group: Sequence[Assignment]) -> Callable[[], list[Answer]]:
        """Submit the work of a group, and give a function that collects the answers."""
        if len(group) == 1:
            with _named(group[0][1]):
                collect = self.trainer.submit(*group[0])
            return lambda: [_answer(*collect(), group[0][2])]
        if self._able:
            try:
                made = self.vmapped.run_tasks(*map(list, zip(*group, strict=True)))
                return lambda: [_answer(*one, old) for one, (_, _, old) in zip(made, group, strict=True)]
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
        """Replicas, made when they are first needed; batches of different clients are of one width."""
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


# ---- which clients are trained at once


def worth_grouping(module: nn.Module, products: float, device: str) -> bool:
    """Say whether training many clients in one step pays: tiny models, whose batches do not share statistics."""
    normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())
    small = sum(p.numel() for p in module.parameters()) < SMALL
    return not normed and small and products < (TINY if device == "cpu" else TINY_ON_GPU)


def group_tasks(tasks: Sequence[Task], sizes: np.ndarray, together: bool, ways: int) -> list[list[int]]:
    """Return the places of tasks that are done at once, longest first, in a multiple of `ways`.

    Probes are done alone.
    """
    longest_first = sorted(range(len(tasks)), key=lambda i: (-sizes[tasks[i].client], i))
    if not together or len(tasks) < 2 or tasks[0].kind != "train":
        return [[i] for i in longest_first]
    groups = max(min(ways * ceil(len(tasks) / (ways * MOST_REPLICAS)), len(tasks) // WORTH_A_STEP), 1)
    size = ceil(len(tasks) / groups)
    return [longest_first[start : start + size] for start in range(0, len(tasks), size)]

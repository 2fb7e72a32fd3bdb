"""Lanes in this process: plain PyTorch, easy to debug.

Visits follow one after another on one lane, or those of many tiny clients at once. Clients that meet while they compute
have a lane each, in lockstep. Steps that may be played as one are one visit of a lane that takes everybody's samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
from torch import Tensor

from fedstrata.client.all_reduce import Add, in_lockstep
from fedstrata.client.batches import Batches
from fedstrata.core.batch_norm import By, Meeting
from fedstrata.core.client_parts import Client, Local
from fedstrata.core.messages import Task, Tensors
from fedstrata.core.rng import torch_seeded
from fedstrata.core.server_parts import Step
from fedstrata.core.threads import cores, one_thread, spare, threads
from fedstrata.data.federation import Federation
from fedstrata.engines.local.cost import products_a_sample
from fedstrata.engines.local.groups import grouped
from fedstrata.engines.local.worker import Answer, Bench, Visiting

WORTH_THREADS = 1e7  # multiplications of a batch above which sharing them among cores pays


class InProcess:
    """Visits clients here; `together` trains many at once, `give_up` hears where that is not possible."""

    def __init__(
        self,
        local: Local,
        federation: Federation,
        together: bool = False,
        give_up: Callable[[str], None] = lambda _: None,
    ):
        self._local, self._federation, self._together, self._give_up = local, federation, together, give_up
        self._sizes = federation.train_split.sizes
        self._benches = [self._make_bench(federation.train.x, federation.train.y)]  # more where clients meet

    def _make_bench(self, x: Tensor, y: Tensor) -> Bench:
        fastest = 1.0 if self._federation.speeds is None else float(self._federation.speeds.max())
        return Bench(self._local, x, y, int(self._sizes.max()), fastest, give_up=self._give_up)

    def work(self, tasks: Sequence[Task], keeps: Mapping[int, Tensors]) -> list[Answer]:
        """Make all visits; answers in task order."""
        answers: dict[int, Answer] = {}
        with one_thread():
            for group in grouped(tasks, self._sizes, self._together, cores()):
                made = self._benches[0].visits([self._visiting(tasks[i], keeps) for i in group])
                answers |= dict(zip(group, made, strict=True))
        return [answers[i] for i in range(len(tasks))]

    def lockstep(
        self, tasks: Sequence[Task], keeps: Mapping[int, Tensors], by: By, add: Add | None = None
    ) -> tuple[list[Answer], Tensor | None]:
        """Make all visits side by side; also give the norm statistics that the clients agreed on."""
        buf = self._benches[0].lane.buf
        while len(self._benches) < len(tasks):
            self._benches.append(self._make_bench(buf.x, buf.y))
        seed = self._local.streams.torch_seed("module", round=tasks[0].round, step=tasks[0].turn)
        with one_thread(), torch_seeded(seed):
            pairs = zip(self._benches, tasks, strict=False)
            visits: list[Callable[[Meeting], Answer]] = [
                partial(_meet, bench, self._visiting(task, keeps)) for bench, task in pairs
            ]
            answers, place = in_lockstep(visits, by, add)
        return self._brought_home(answers), place.statistics(self._benches[0].lane.space)

    def joint(self, step: Step, tasks: Sequence[Task], keeps: Mapping[int, Tensors]) -> tuple[list[Answer], Tensors]:
        """Play many steps as one; reports and new state of every client, and the common outcome."""
        joint, local, lane = step.joint, self._local, self._benches[0].lane
        assert joint is not None
        orders, rows = [], []
        for task in tasks:
            client = self._client(task)
            order = local.sampler.plan(lane.visiting(client, task, keeps.get(task.client, {})))
            orders.append(order)
            rows.append(client.rows[np.concatenate(order.epochs)])
        flat = interleaved(rows, np.repeat(joint.who, joint.runs))
        first = tasks[0]
        parts, where = np.unique(joint.parts, return_inverse=True)
        rates = np.array([local.rate.at(first.round, (p, step.part[1])) for p in parts.tolist()])
        batches = Batches(flat, joint.sizes, rates[where], lane.joint_keys(step, tasks))
        with self._at_work(), threads(spare() if self._products * joint.sizes.max(initial=0) > WORTH_THREADS else 1):
            report = lane.jointly(first, batches).read()
        answers: list[Answer] = [
            (
                replace(report, client=task.client, samples=len(own), summed={}),
                {**keeps.get(task.client, {}), **order.keep},
            )
            for task, own, order in zip(tasks, rows, orders, strict=True)
        ]
        return answers, report.summed

    def _at_work(self) -> AbstractContextManager[None]:
        """Do what the first lane does where it works."""
        return threads(1)

    def _brought_home(self, answers: Sequence[Answer]) -> list[Answer]:
        """Give client state as it is kept."""
        return list(answers)

    @cached_property
    def _products(self) -> int:
        """Multiplications of a sample: a large global batch is shared among all cores, for no other lane is at work."""
        x = self._local.inputs(self._federation.train.x[:2], self._local.dtype)
        return products_a_sample(self._local.build().to(self._local.dtype), x)

    def _client(self, task: Task) -> Client:
        return self._federation.at(task.round).client(task.client)

    def _visiting(self, task: Task, keeps: Mapping[int, Tensors]) -> Visiting:
        return self._client(task), task, keeps.get(task.client, {})

    def close(self) -> None:
        """Nothing to end."""


def _meet(bench: Bench, who: Visiting, meeting: Meeting) -> Answer:
    return bench.visit(*who, meeting)


def interleaved(rows: Sequence[np.ndarray], whose: np.ndarray) -> np.ndarray:
    """Let everybody give their rows in order, when it is their turn."""
    flat = np.empty(len(whose), dtype=np.int64)
    flat[np.argsort(whose, kind="stable")] = np.concatenate(rows)
    return flat

"""Lanes in this process: plain PyTorch, easy to debug.

Visits follow one after another on one lane. Clients that meet while they compute have a lane each, in lockstep. Steps
that may be played as one are one visit of a lane that takes everybody's samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from fedstrata.clientside import Local
from fedstrata.engines.local.cost import cores, products_a_sample
from fedstrata.federation import Federation
from fedstrata.lane import Lane
from fedstrata.messages import Report, Task, Tensors
from fedstrata.norms import By, Meeting
from fedstrata.rendezvous import in_lockstep
from fedstrata.rng import torch_seeded
from fedstrata.serverside import Step

WORTH_THREADS = 1e7  # multiplications of a batch above which sharing them among cores pays


class InProcess:
    """Visits one client after another, here."""

    def __init__(self, local: Local, federation: Federation, device: str = "cpu"):
        self._local, self._federation, self._device = local, federation, device
        self._largest = int(federation.train_split.sizes.max())
        self._fastest = 1.0 if federation.speeds is None else float(federation.speeds.max())
        self._lane = self._make_lane(federation.train.x, federation.train.y)
        self._lanes = [self._lane]  # more where clients meet

    def _make_lane(self, x: Tensor, y: Tensor) -> Lane:
        return Lane(self._local, x, y, self._largest, self._device, fastest=self._fastest)

    def work(self, tasks: Sequence[Task], keeps: Mapping[int, Tensors]) -> list[tuple[Report, Tensors | None]]:
        """Make all visits in order."""
        answers: list[tuple[Report, Tensors | None]] = []
        with one_thread():
            for task in tasks:
                answers.append(self._visit(self._lane, task, keeps))
        return answers

    def lockstep(
        self, tasks: Sequence[Task], keeps: Mapping[int, Tensors], by: By
    ) -> tuple[list[tuple[Report, Tensors | None]], Tensor | None]:
        """Make all visits side by side; also give the norm statistics that the clients agreed on."""
        buf = self._lane.buf
        while len(self._lanes) < len(tasks):
            self._lanes.append(self._make_lane(buf.x, buf.y))
        seed = self._local.streams.torch_seed("module", round=tasks[0].round, step=tasks[0].turn)
        with one_thread(), torch_seeded(seed):
            pairs = zip(self._lanes, tasks, strict=False)
            visits = [partial(self._visit, lane, task, keeps) for lane, task in pairs]
            answers, place = in_lockstep(visits, by)
        return answers, place.statistics(self._lane.space)

    def joint(
        self, step: Step, tasks: Sequence[Task], keeps: Mapping[int, Tensors]
    ) -> tuple[list[tuple[Report, Tensors | None]], Tensors]:
        """Play many steps as one; reports and new state of every client, and the common outcome."""
        joint, local, lane = step.joint, self._local, self._lane
        assert joint is not None
        orders, rows = [], []
        for task in tasks:
            client = self._federation.at(task.round).client(task.client)
            order = local.sampler.plan(lane.visiting(client, task, keeps.get(task.client, {})))
            orders.append(order)
            rows.append(client.rows[np.concatenate(order.epochs)])
        flat = interleaved(rows, np.repeat(joint.who, joint.runs))
        batches = np.split(flat, np.cumsum(joint.sizes)[:-1]) if len(joint.sizes) else []
        first = tasks[0]
        rates = {int(p): local.rate.at(first.round, (int(p), step.part[1])) for p in np.unique(joint.parts)}
        keys = lane.joint_keys(step, tasks)
        with threads(cores() if self._products * joint.sizes.max(initial=0) > WORTH_THREADS else 1):
            report = lane.jointly(first, batches, np.array([rates[int(p)] for p in joint.parts]), keys).read()
        answers: list[tuple[Report, Tensors | None]] = [
            (
                replace(report, client=task.client, samples=len(own), summed={}),
                {**keeps.get(task.client, {}), **order.keep},
            )
            for task, own, order in zip(tasks, rows, orders, strict=True)
        ]
        return answers, report.summed

    @cached_property
    def _products(self) -> int:
        """Multiplications of a sample: a large global batch is shared among all cores, for no other lane is at work."""
        x = self._local.inputs(self._lane.buf.x[:2], self._local.dtype).cpu()
        return products_a_sample(self._local.build().to(self._local.dtype), x)

    def _visit(
        self, lane: Lane, task: Task, keeps: Mapping[int, Tensors], meeting: Meeting | None = None
    ) -> tuple[Report, Tensors | None]:
        client = self._federation.at(task.round).client(task.client)
        old = keeps.get(task.client, {})
        try:
            report, new = lane.visit(client, task, old, meeting)
        except Exception as error:
            error.add_note(f"while client {task.client} did {task.kind!r} in round {task.round + 1}")
            raise
        return report, None if new is old or not new else {k: t.cpu() for k, t in new.items()}

    def close(self) -> None:
        """Nothing to end."""


def interleaved(rows: Sequence[np.ndarray], whose: np.ndarray) -> np.ndarray:
    """Let everybody give their rows in order, when it is their turn."""
    flat = np.empty(len(whose), dtype=np.int64)
    flat[np.argsort(whose, kind="stable")] = np.concatenate(rows)
    return flat


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> AbstractContextManager[None]:
    """Work as every lane does: how sums are cut among threads changes their last bit."""
    return threads(1)

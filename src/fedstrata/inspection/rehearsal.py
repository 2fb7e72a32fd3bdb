"""What a plan would cost: its last rounds are rehearsed, message by message, and nobody trains.

The plan's own driver and selector ask for steps, and every step is charged as in a run. How much a client sends is
learnt from one client update that is really made, with two samples; all others send as much, with numbers that vary by
chance. Of a long schedule of labels a shorter one is simulated, and scaled up; clients then run out of labels later, so
that a batch is shared by up to a fifth more of them. Masks, noise and lost reports are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from fedstrata.client.local_step import Batches
from fedstrata.client.trainer import Trainer
from fedstrata.config.build import initial_model
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.client_parts import Client
from fedstrata.core.messages import Report, Task, Value, fast_replace, tensor_bytes
from fedstrata.core.plan import Plan
from fedstrata.core.steps import Outcome, Step, View, drive_round
from fedstrata.data.devices import Devices
from fedstrata.data.federation import Federation
from fedstrata.methods.drivers.scheduled import ScheduledDriver
from fedstrata.server.accounting import Traffic, count_cost
from fedstrata.server.loop import broadcast
from fedstrata.server.state import State

ROUNDS = 5  # that are rehearsed: a method may ask more of clients in one round than in another
ENTRIES = 50_000  # most entries of a schedule that are simulated in a round


@dataclass(frozen=True)
class Cost:
    """Of a round on average, and before the first one."""

    bytes: float  # in all directions
    client_updates: float  # client updates that train
    setup_bytes: int  # to tell the server what it must know

    def over(self, other: Cost) -> dict[str, float]:
        """Say how many times another cost this is."""
        return {
            "bytes": self.bytes / other.bytes,
            "client_updates": self.client_updates / other.client_updates,
            "setup_bytes": float(self.setup_bytes),
        }


def rehearse(plan: Plan, federation: Federation) -> Cost:
    """Rehearse the last rounds, when warm-ups are over."""
    plan = replace(plan, system=Devices(), why_not_fused=None)
    client_info = federation.client_info(plan.needs, plan.streams)
    rounds, times = range(max(plan.rounds - ROUNDS, 0), plan.rounds), 1.0
    if isinstance(plan.driver, ScheduledDriver):
        driver, times = _shortened(plan.driver, client_info)
        plan, rounds = replace(plan, driver=driver), rounds[-1:]
    rehearsal = _Rehearsal(plan, federation, client_info)
    for round in rounds:
        rehearsal.round(round)
    total = {name: value * times / len(rounds) for name, value in asdict(rehearsal.traffic).items()}
    moved = sum(value for name, value in total.items() if name != "client_updates")
    return Cost(moved, total["client_updates"], client_info.setup_bytes)


def _shortened(driver: ScheduledDriver, client_info: ClientInfo) -> tuple[ScheduledDriver, float]:
    """Make the epochs of a schedule short enough, and say how many times longer they are."""
    schedule = driver.schedule
    length = int(schedule.check_frequencies(schedule.totals(client_info)).sum())
    short = min(length, ENTRIES * schedule.rounds_per_epoch)
    return replace(driver, schedule=replace(schedule, length=short)), length / short


class _Rehearsal:
    """A server that asks, and clients that answer without having done anything."""

    def __init__(self, plan: Plan, federation: Federation, client_info: ClientInfo):
        self.plan, self.client_info, self.traffic = plan, client_info, Traffic()
        self._sizes = federation.train_split.sizes
        rows = federation.train_split.rows[:2]
        self._two = federation.train.x[rows], federation.train.y[rows], len(federation.classes)
        self._trainer: Trainer | None = None
        self._seen: dict[tuple[str, bool], Report] = {}
        self._state = State.first(plan, self._view(0), initial_model(plan, None))

    def _view(self, round: int) -> View:
        return self.plan.view(self.client_info, round, lambda *_, **__: None)

    def round(self, number: int) -> None:
        """Simulate a round, and charge its steps."""
        plan, state, view = self.plan, self._state, self._view(number)
        steps = drive_round(plan.driver, state.driver, view, plan.selector, state.selector)
        outcome: Any = None
        for at in range(10**9):
            try:
                step = steps.send(outcome)
            except StopIteration:
                return
            down = broadcast(plan, state, step)
            tasks = [
                Task(a.client, number, at, step.kind, part=step.part, config=a.config, down=down) for a in step.asks
            ]
            size = tensor_bytes(down if step.fused is None else broadcast(plan, state, replace(step, fused=None)))
            reports = self._answers(step, tasks)
            self.traffic.add(count_cost(step, size, tasks, reports))
            outcome = Outcome(step, at, tuple(reports), ())

    def _answers(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        if not tasks:
            return []
        key = step.kind, step.fused is not None
        if key not in self._seen:
            self._seen[key] = self._fused(tasks[0]) if step.fused is not None else self._run_task(tasks[0])
        like = self._seen[key]
        factors = np.exp(self.plan.streams("rehearsal", tasks[0].round, tasks[0].step).normal(0, 0.5, len(tasks)))
        return [
            fast_replace(
                like, client=task.client, samples=int(self._sizes[task.client]), metrics=_varied(like.metrics, factor)
            )
            for task, factor in zip(tasks, factors.tolist(), strict=True)
        ]

    def _run_task(self, task: Task) -> Report:
        """Make one client update to a client of two samples."""
        x, y, classes = self._two
        client = Client(task.client, np.arange(len(y)), y.numpy(), classes)
        return self._on(x, y).run_task(client, task, {})[0].read().open()

    def _fused(self, task: Task) -> Report:
        """Learn what norms that meet exchange; models that are handed on stand in the step itself."""
        if not self.plan.space.normed:
            return Report(task.client, 0)
        x, y, _ = self._two
        batch = Batches(np.arange(len(y)), np.array([len(y)]), np.zeros(1), np.zeros(len(y), dtype=np.int64))
        return self._on(x, y).train_fused(task, batch).read().open()

    def _on(self, x: Tensor, y: Tensor) -> Trainer:
        if self._trainer is None:
            self._trainer = Trainer(self.plan.local, x, y, len(y))
        return self._trainer


def _varied(metrics: Any, factor: float) -> dict[str, Value]:
    """Multiply what a client measured by its own factor."""
    return {name: value * factor if isinstance(value, float) else value for name, value in metrics.items()}

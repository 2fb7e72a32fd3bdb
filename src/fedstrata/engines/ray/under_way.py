"""A step on a cluster that is not settled yet: who trains which client, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedstrata.core.messages import Report, Tag, Task, Tensors
from fedstrata.core.steps import Step
from fedstrata.engines.ray.worker import TaskDone


@dataclass
class StepUnderWay:
    """What is known of a step until it is settled."""

    step: Step
    tasks: dict[int, Task]
    down: Any  # the model in the object store
    worker: dict[int, str] = field(default_factory=dict)  # by client: the worker that has its report
    told: dict[int, TaskDone] = field(default_factory=dict)
    outcome: Tensors | None = None  # of a fused step
    statistics: Tensor | None = None  # of norms that met
    here: dict[int, Report] | None = None  # whole reports of clients that met in this process

    @property
    def tag(self) -> Tag:
        """Round and step."""
        first = next(iter(self.tasks.values()))
        return first.round, first.step

    def owners(self, clients: Iterable[int]) -> dict[str, list[int]]:
        """Return who has the reports of which of these clients."""
        owners: dict[str, list[int]] = {}
        for client in clients:
            owners.setdefault(self.worker[client], []).append(client)
        return owners

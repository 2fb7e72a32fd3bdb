"""A worker on a cluster: an actor that runs its clients' tasks, sums what they send, and keeps their state.

Whole reports stay here until the server has weighed them: what leaves is the open half of each and one sum of all.
New state is pending until the server says with the next step which reports counted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedstrata import __version__
from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.messages import Report, Tag, Task, Tensors, fast_replace, read
from fedstrata.core.steps import Step
from fedstrata.engines.local.engine import Answer, InProcessPool
from fedstrata.engines.local.gpu import GpuPool, ask_for_queues, set_precision
from fedstrata.engines.ray.grid import Units, add_counts, count_units, peaks_of, summed_dtypes
from fedstrata.engines.ray.packing import Packed, pack, unpack
from fedstrata.engines.ray.shards import Outline, SampleShard


@dataclass(frozen=True)
class WorkOrder:
    """What a worker is to do in a step, beside the model, which comes once for all."""

    tag: Tag
    tasks: Sequence[Task]
    client_states: Mapping[int, Packed] = field(default_factory=dict)  # of clients whose state is not here
    committed: Sequence[int] = ()  # clients of the step before whose report counted
    moved_away: Sequence[int] = ()  # clients whose state another worker has now


@dataclass(frozen=True)
class TaskDone:
    """What a worker tells of a client update before anything is summed."""

    report: Report  # without tensors
    open_tensors: Packed
    client_state: Packed | None
    peaks: Mapping[str, float]
    dtypes: Mapping[str, str]


@dataclass(frozen=True)
class FailedTask:
    """A part raised while it worked for a client."""

    client: int
    trace: str


@dataclass(frozen=True)
class WorkDone:
    """A worker's answer to an order."""

    tasks: Sequence[TaskDone] = ()
    common: Packed = field(default_factory=dict)  # the outcome of steps that were run as one, or norm statistics
    remarks: Sequence[str] = ()
    failed: FailedTask | None = None


def list_versions() -> dict[str, str]:
    """Return what this process is made of."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"fedstrata": __version__, "torch": torch.__version__, "python": python}


class ClientWorker:
    """Lives in a process of Ray's; plain PyTorch with one thread, or a stream on its share of a GPU."""

    def __init__(self, on_gpu: bool, cuda_graphs: bool, precision: str):
        torch.set_num_threads(1)
        if on_gpu:
            set_precision(precision)
        self._on_gpu, self._cuda_graphs = on_gpu, cuda_graphs

    def prepare(self, local: ClientPlan, outline: Outline) -> dict[str, Any]:
        """Take the plan, with empty hands; say what this process is made of, for all workers must be alike."""
        self._local, self._outline = local, outline
        self._pool: InProcessPool | None = None
        self._tag: Tag | None = None
        self._reports: dict[int, Report] = {}
        self._pending: dict[int, Tensors] = {}
        self._kept: dict[int, Tensors] = {}
        self._remarks: list[str] = []
        sees_device = torch.cuda.is_available() if self._on_gpu else True
        return {"pid": os.getpid(), "versions": list_versions(), "sees_device": sees_device}

    def place(self, shard: SampleShard) -> bool:
        """Take samples; say whether they could be read."""
        try:
            federation = self._outline.fill(shard)
        except FileNotFoundError:
            return False
        options = self._local, federation, False, self._remarks.append
        if self._on_gpu:
            ask_for_queues()
            self._pool = GpuPool(*options, record=self._cuda_graphs, largest=self._outline.largest)
        else:
            self._pool = InProcessPool(*options, largest=self._outline.largest)
        return True

    def work(self, down: Packed, order: WorkOrder) -> WorkDone:
        """Make client updates, one after another."""
        tasks, client_states = self._begin(down, order)
        answers: list[Answer] = []
        for task in tasks:
            try:
                answers += self._resident.work([task], client_states)
            except Exception:
                return WorkDone(failed=FailedTask(task.client, traceback.format_exc()))
        return self._tell(answers)

    def work_together(self, down: Packed, order: WorkOrder, step: Step) -> WorkDone:
        """Make the client updates of clients that compute one batch together, or meet while they compute."""
        tasks, client_states = self._begin(down, order)
        try:
            if step.fused is not None:
                answers, outcome = self._resident.run_fused(step, tasks, client_states)
                return self._tell(answers, outcome)
            assert step.together is not None
            answers, statistics = self._resident.lockstep(tasks, client_states, step.together)
            return self._tell(answers, {} if statistics is None else {"statistics": statistics})
        except Exception as error:
            client = getattr(error, "client", tasks[0].client)
            return WorkDone(failed=FailedTask(client, traceback.format_exc()))

    def collect(self, weights: Mapping[int, float], units: Units, *beside: Packed) -> Packed:
        """Sum what these clients sent, and what other workers of this node have summed."""
        own = count_units(self._reports, weights, units)
        return pack(add_counts([own, *(unpack(part, copy=False) for part in beside)]))

    def each(self) -> dict[int, Packed]:
        """Return what every client sent, for a server that must see single updates."""
        return {client: pack(report.aggregated) for client, report in self._reports.items()}

    @property
    def _resident(self) -> InProcessPool:
        assert self._pool is not None, "samples come first"
        return self._pool

    def _begin(self, down: Packed, order: WorkOrder) -> tuple[list[Task], dict[int, Tensors]]:
        """Settle the step before, unless this is more of the same one; return tasks with the model and the state."""
        if order.tag != self._tag:
            self._kept |= {client: self._pending[client] for client in order.committed if client in self._pending}
            self._tag, self._reports, self._pending = order.tag, {}, {}
        for client in order.moved_away:
            self._kept.pop(client, None)
        self._kept |= {client: unpack(state) for client, state in order.client_states.items()}
        brought = unpack(down, copy=False)
        tasks = [fast_replace(task, down=brought) for task in order.tasks]
        return tasks, {task.client: self._kept[task.client] for task in tasks if task.client in self._kept}

    def _tell(self, answers: Sequence[Answer], common: Tensors | None = None) -> WorkDone:
        reports = read([report for report, _ in answers])
        told = []
        for report, (_, new) in zip(reports, answers, strict=True):
            self._reports[report.client] = report
            if new is not None:
                self._pending[report.client] = new
            done = TaskDone(
                fast_replace(report, aggregated={}, open_tensors={}),
                pack(report.open_tensors),
                None if new is None else pack(new),
                peaks_of(report.aggregated),
                {name: str(kind).removeprefix("torch.") for name, kind in summed_dtypes(report.aggregated).items()},
            )
            told.append(done)
        remarks, self._remarks[:] = list(self._remarks), []
        return WorkDone(told, pack(common or {}), remarks)

"""The local engine: no server, no serialisation with one worker; a breakpoint in a part stops there.

Client state lives here, one dictionary a client, for clients that have any: in memory, or, once a checkpoint holds it,
in the checkpoint's files. New state is pending until the server accepts the report it came with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.engine import AllReduceSum
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Report, Sums, Tag, Task, Tensors, read, to_host, weighted_sum
from fedstrata.core.options import Count
from fedstrata.core.part import Part
from fedstrata.core.server_parts import Step
from fedstrata.core.threads import cores
from fedstrata.data.federation import Federation
from fedstrata.engines.local.cost import Guess
from fedstrata.engines.local.gpu import GpuPool, workers_on_gpu
from fedstrata.engines.local.in_process import InProcessPool
from fedstrata.engines.local.processes import ProcessPool, why_not
from fedstrata.engines.local.worker import Answer, worth_grouping

WORTH_A_PROCESS = 20.0  # seconds of work below which starting processes costs more than it saves


class WorkerPool(Protocol):
    """Workers that work side by side."""

    def work(self, tasks: Sequence[Task], client_states: Mapping[int, Tensors]) -> list[Answer]:
        """Make all client updates; reports and new client state, None where that did not change, in task order."""

    def close(self) -> None:
        """End the workers."""


class LocalEngine:
    """Keeps client state, hands tasks to the workers, sums what they send.

    What clients do together, they do in this process; `here` makes the workers for that when they are first needed.
    """

    can_fuse = True

    def __init__(
        self,
        pool: WorkerPool,
        device: str = "cpu",
        here: Callable[[], InProcessPool] | None = None,
        client_state: Literal["memory", "disk"] = "memory",
    ):
        self._pool, self.device, self._on_disk = pool, device, client_state == "disk"
        self._make_here, self._here = here, pool if isinstance(pool, InProcessPool) else None
        self._client_states: dict[int, tuple[Tag, Tensors]] = {}
        self._stored: Mapping[int, tuple[Tag, Tensors]] = {}  # read when it is needed
        self._pending: dict[int, Tensors] = {}
        self._reports: dict[int, Report] = {}
        self._outcome: Tensors | None = None  # of a fused step
        self._statistics: Tensor | None = None  # of norms that met
        self.all_reduce_sum: AllReduceSum | None = None

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Run tasks; give the open half of every report."""
        places = [(t.client, self._client_states if t.client in self._client_states else self._stored) for t in tasks]
        client_states = {client: place[client][1] for client, place in places if client in place}
        self._outcome = self._statistics = None
        if step.fused is not None:
            answers, self._outcome = self._in_this_process().run_fused(step, tasks, client_states)
        elif step.together is not None:
            add = None if self.all_reduce_sum is None else self.all_reduce_sum(tasks)
            answers, self._statistics = self._in_this_process().lockstep(tasks, client_states, step.together, add)
        else:
            answers = self._pool.work(tasks, client_states)
        self._reports = {r.client: r for r in read([report for report, _ in answers])}
        self._pending = {r.client: new for r, new in answers if new is not None}
        return [r.open() for r in self._reports.values()]

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what the last step's clients sent, in the order of the weights."""
        if self._outcome is not None:
            return Sums({name: to_host(t) for name, t in self._outcome.items()}, 1.0, len(weights), fused=True)
        sums = weighted_sum(self._reports, weights)
        total = {name: to_host(t) for name, t in sums.total.items()}
        if self._statistics is not None:
            total["statistics"] = self._statistics
        return replace(sums, total=total)

    def each(self) -> Mapping[int, Report]:
        """Return the last step's reports whole."""
        return {client: report.to("cpu") for client, report in self._reports.items()}

    def overhead_bytes(self) -> tuple[int, int]:
        """Return nothing: updates come as they are."""
        return 0, 0

    def settle(self, accepted: Collection[int], tag: Tag) -> None:
        """Commit the state of the clients whose report counted."""
        for client in accepted:
            if client in self._pending:
                self._client_states[client] = (tag, self._pending[client])
        self._pending, self._reports = {}, {}

    def client_states(self) -> Mapping[int, tuple[Tag, Tensors]]:
        """Return the state of every client that has any, but for what a checkpoint holds already."""
        return self._client_states

    def restore(self, client_states: Mapping[int, tuple[Tag, Tensors]]) -> None:
        """Take client state back from a checkpoint."""
        self._client_states, self._stored = ({}, client_states) if self._on_disk else (dict(client_states), {})

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def _in_this_process(self) -> InProcessPool:
        if self._here is None:
            assert self._make_here is not None
            self._here = self._make_here()
        return self._here


@dataclass(frozen=True)
class LocalEngineOptions(Part):
    """Workers on this machine: plain PyTorch in this process, one process a core, or streams on GPUs."""

    workers: Count | Literal["auto"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    client_state: Literal["memory", "disk"] = "memory"
    vmap: Literal["auto", "always", "never"] = "auto"  # whether clients are trained many at once
    cuda_graphs: bool = True  # whether a GPU replays recorded steps

    def start(
        self, local: ClientPlan, federation: Federation, client_updates: int, note: Callable[..., None]
    ) -> LocalEngine:
        """Start the workers for a run of about so many client updates."""
        cuda = torch.cuda.is_available()
        if self.device == "cuda" and not cuda:
            raise RequestError('engine.device = "cuda" but torch sees no GPU; use "cpu" or "auto"')
        device = "cuda" if cuda and self.device != "cpu" else "cpu"
        guess = Guess.of(local, federation, client_updates)
        together = self._vmap(local, guess, device)

        def remark(text: str) -> None:  # what may differ between equal runs stands under `wall`
            note("engine", wall={"remark": text})

        here = partial(InProcessPool, local, federation, together, remark)
        if device == "cuda":
            fast = self.precision in ("tf32", "bf16")
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
            torch.backends.cudnn.benchmark = fast  # the quickest kernels, which need not be the same in every run
            workers, why = (
                workers_on_gpu(guess.products * local.batch_size) if self.workers == "auto" else self.workers,
                None,
            )
            gpu = GpuPool(local, federation, together, remark, workers, self.cuda_graphs)
            pool: WorkerPool = gpu
            workers = gpu.workers
        else:
            workers, why = self._workers(local, guess)
            pool = here() if workers == 1 else ProcessPool(local, federation, workers, together, remark)
        about = {"workers": workers, "device": device, "precision": self.precision, "vmap": together, "remark": why}
        about["torch"] = torch.__version__
        note("engine", wall=about)
        return LocalEngine(pool, device, here, self.client_state)

    def _vmap(self, local: ClientPlan, guess: Guess, device: str) -> bool:
        """Say whether clients are trained many at once."""
        if self.vmap == "auto":
            return worth_grouping(local.build(), guess.products * local.batch_size, device)
        return self.vmap == "always"

    def _workers(self, local: ClientPlan, guess: Guess) -> tuple[int, str | None]:
        """Return the number of processes, and what the user should know about it."""
        if self.workers == 1 or (self.workers == "auto" and (cores() == 1 or guess.seconds < WORTH_A_PROCESS)):
            return 1, None
        if reason := why_not(local):
            if self.workers != "auto":
                raise RequestError(f"engine.workers = {self.workers}: {reason}; use engine.workers = 1")
            return 1, f"one worker is used: {reason}"
        if self.workers == "auto":
            return cores(), None
        too_many = f"{self.workers} workers on {cores()} core(s) slow each other down"
        return self.workers, too_many if self.workers > cores() else None

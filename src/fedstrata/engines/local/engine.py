"""The local engine: no server, no serialisation with one worker; a breakpoint in a part stops there.

Client state lives here, one dictionary a client, for clients that have any: in memory (`client_states.py`), or, once a
checkpoint holds it, in the checkpoint's files. New state is pending until the server accepts the report it came with.

Workers in this process are plain PyTorch: client updates follow one after another on one worker, or those of many tiny
clients at once. Clients that all-reduce while they compute have a worker each, in lockstep. Steps that may be fused are
one client update of a worker that takes everybody's samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from math import ceil, nan
from types import MappingProxyType
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fedstrata.client.all_reduce import run_in_lockstep
from fedstrata.client.local_step import Batches
from fedstrata.client.products import WORTH_THREADS, products_a_sample
from fedstrata.client.trainer import Trainer, plan_order
from fedstrata.client.vmapped import MOST_REPLICAS, VmappedTrainer
from fedstrata.core.batch_norm import AllReduce, By
from fedstrata.core.client_parts import Client, ClientPlan
from fedstrata.core.engine import AllReduceSum, ClientStates, SumTensors
from fedstrata.core.index import stable_order
from fedstrata.core.machine.threads import cores, one_thread, spare, threads
from fedstrata.core.messages import Report, Sums, Tag, Task, Tensors, read, to_host, weighted_sum
from fedstrata.core.rng import seed_torch
from fedstrata.core.steps import Step
from fedstrata.data.federation import Federation
from fedstrata.engines.local.client_states import ClientStateStore
from fedstrata.engines.local.traced_step import Tracer

WORTH_A_STEP = 8  # clients that a group should have at least
Assignment = tuple[Client, Task, Tensors]  # who, what, and the client's own state
Answer = tuple[Report, Tensors | None]  # new state: None where it did not change


class WorkerPool(Protocol):
    """Workers that work side by side; `room` is what each of their devices spares for client state, in bytes."""

    room: Mapping[torch.device, int]

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
        self._store = ClientStateStore(pool.room)
        if isinstance(pool, InProcessPool):
            pool.evict = self._store.evict
        self._on_file: ClientStates = {}  # read when it is needed
        self._pending: dict[int, Tensors] = {}
        self._reports: dict[int, Report] = {}
        self._outcome: Tensors | None = None  # of a fused step
        self._statistics: Tensor | None = None  # of norms that met
        self.all_reduce_sum: AllReduceSum | None = None

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Run tasks; give the open half of every report."""
        known = self._store.states
        places = [(t.client, known if t.client in known else self._on_file) for t in tasks]
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
                self._store.put(client, tag, self._pending[client])
        self._pending, self._reports = {}, {}

    def client_states(self) -> ClientStates:
        """Return the state of every client that has any, but for what a checkpoint holds already."""
        return self._store.states

    def restore(self, client_states: ClientStates) -> None:
        """Take client state back from a checkpoint."""
        self._store.replace_all({} if self._on_disk else client_states)
        self._on_file = client_states if self._on_disk else {}

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def _in_this_process(self) -> InProcessPool:
        if self._here is None:
            assert self._make_here is not None
            self._here = self._make_here()
        return self._here


class InProcessPool:
    """Runs tasks here; `together` trains many clients at once, `give_up` hears where that is not possible."""

    room: Mapping[torch.device, int] = MappingProxyType({})
    evict: Callable[[], bool] | None = None  # how an engine takes client state from devices; says whether it could

    def __init__(
        self,
        local: ClientPlan,
        federation: Federation,
        together: bool = False,
        give_up: Callable[[str], None] = lambda _: None,
        largest: int | None = None,  # client anywhere, where this is not the whole federation
    ):
        self._local, self._federation, self._together, self._give_up = local, federation, together, give_up
        self._sizes, self._cores = federation.train_split.sizes, cores()
        self._largest = int(self._sizes.max()) if largest is None else largest
        self._workers = [self._make_worker(federation.train.x, federation.train.y)]  # more where clients meet

    def _make_worker(self, x: Tensor, y: Tensor) -> Worker:
        fastest = 1.0 if self._federation.speeds is None else float(self._federation.speeds.max())
        return Worker(self._local, x, y, self._largest, fastest, give_up=self._give_up)

    def work(self, tasks: Sequence[Task], client_states: Mapping[int, Tensors]) -> list[Answer]:
        """Make all client updates; answers in task order."""
        answers: dict[int, Answer] = {}
        for group in group_tasks(tasks, self._sizes, self._together, self._cores):
            made = self._workers[0].submit([self._assignment(tasks[i], client_states) for i in group])()
            answers |= dict(zip(group, made, strict=True))
        return [answers[i] for i in range(len(tasks))]

    def lockstep(
        self, tasks: Sequence[Task], client_states: Mapping[int, Tensors], by: By, add: SumTensors | None = None
    ) -> tuple[list[Answer], Tensor | None]:
        """Make all client updates side by side; also give the norm statistics that the clients agreed on."""
        self._need_workers(len(tasks))
        seed = self._local.streams.torch_seed("module", round=tasks[0].round, step=tasks[0].turn)
        with one_thread(), seed_torch(seed):
            pairs = zip(self._workers, self._assignments(tasks, client_states), strict=False)
            client_updates: list[Callable[[AllReduce], Answer]] = [partial(_meet, worker, who) for worker, who in pairs]
            answers, place = run_in_lockstep(client_updates, by, add)
        return answers, place.statistics(self._workers[0].trainer.space)

    def _need_workers(self, number: int) -> None:
        buf = self._workers[0].trainer.buf
        while len(self._workers) < number:
            self._workers.append(self._make_worker(buf.x, buf.y))

    def run_fused(
        self, step: Step, tasks: Sequence[Task], client_states: Mapping[int, Tensors]
    ) -> tuple[list[Answer], Tensors]:
        """Run many steps as one; reports and new state of every client, and the common outcome.

        A report says what is true of its client alone: samples, client updates. How far each of them would have moved
        the model nobody computed, so it is not told; the loss is everybody's.
        """
        fused, local, trainer = step.fused, self._local, self._workers[0].trainer
        assert fused is not None
        orders, rows = [], []
        for task in tasks:
            client = self._client(task)
            order = plan_order(local.sampler, trainer.make_context(client, task, client_states.get(task.client, {})))
            orders.append(order)
            rows.append(client.rows[np.concatenate(order.epochs)])
        flat = interleave(rows, np.repeat(fused.who, fused.runs))
        first = tasks[0]
        parts, where = np.unique(fused.parts, return_inverse=True)
        rates = np.array([local.rate.at(first.round, (p, step.part[1])) for p in parts.tolist()])
        batches = Batches(flat, fused.sizes, rates[where], trainer.fused_keys(step, tasks))
        largest = int(fused.sizes.max(initial=0))
        shared = largest > 1 and self._products * largest > WORTH_THREADS  # threads only wait on single samples
        with self._use_stream(), threads(spare() if shared else 1):
            begun = trainer.train_fused(first, batches)
            if step.meanwhile is not None:  # a GPU is busy for as long as that takes
                step.meanwhile()
            (report,) = read([begun])
        updates = step.count_updates([task.client for task in tasks])
        common = replace(report, update_norm=nan, aggregated={})
        answers: list[Answer] = [
            (
                replace(common, client=task.client, samples=len(own), steps=times, work=float(len(own))),
                {**client_states.get(task.client, {}), **order.client_state},
            )
            for task, own, order, times in zip(tasks, rows, orders, updates, strict=True)
        ]
        return answers, report.aggregated

    def _use_stream(self) -> AbstractContextManager[None]:
        """Do what the first worker does where it works."""
        return threads(1)

    @cached_property
    def _products(self) -> int:
        """Multiplications of a sample.

        A large global batch is shared among all cores, for no other worker is at work.
        """
        x = self._local.inputs(self._federation.train.x[:2], self._local.dtype)
        return products_a_sample(self._local.build().to(self._local.dtype), x)

    def _client(self, task: Task) -> Client:
        return self._federation.at(task.round).client(task.client)

    def _assignments(self, tasks: Sequence[Task], client_states: Mapping[int, Tensors]) -> list[Assignment]:
        """Return what the first workers are to do, one task each, with tensors where they work."""
        return [self._assignment(task, client_states) for task in tasks]

    def _assignment(self, task: Task, client_states: Mapping[int, Tensors]) -> Assignment:
        return self._client(task), task, client_states.get(task.client, {})

    def close(self) -> None:
        """Nothing to end."""


def _meet(worker: Worker, who: Assignment, all_reduce: AllReduce) -> Answer:
    return worker.run_task(*who, all_reduce)


def interleave(rows: Sequence[np.ndarray], whose: np.ndarray) -> np.ndarray:
    """Let everybody give their rows in order, when it is their turn."""
    flat = np.empty(len(whose), dtype=np.int64)
    flat[stable_order(whose)] = np.concatenate(rows)
    return flat


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
            with _naming_client(group[0][1]):
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
        with _naming_client(task):
            return _answer(*self.trainer.run_task(client, task, client_state, all_reduce), client_state)

    @cached_property
    def vmapped(self) -> VmappedTrainer:
        """Replicas, made when they are first needed; batches of different clients are of one width."""
        padded = self.trainer if self.trainer.pad else Trainer(*self._made_of, pad=True, fastest=self._fastest)
        vmapped = VmappedTrainer(padded, MOST_REPLICAS)
        vmapped.recorder = Tracer(vmapped, self._give_up) if self.record is None else self.record(vmapped)
        return vmapped


@contextmanager
def _naming_client(task: Task) -> Iterator[None]:
    """Say whose client update it was that failed."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while client {task.client} did {task.kind!r} in round {task.round + 1}")
        raise


def _answer(report: Report, new: Tensors, old: Tensors) -> Answer:
    return report, None if new is old or not new else new


def group_tasks(tasks: Sequence[Task], sizes: np.ndarray, together: bool, ways: int) -> list[list[int]]:
    """Return the places of tasks that are done at once, longest first, in a multiple of `ways`.

    They do not depend on workers, so any number of these gives the same bits. Probes are done alone.
    """
    longest_first = sorted(range(len(tasks)), key=lambda i: (-sizes[tasks[i].client], i))
    if not together or len(tasks) < 2 or tasks[0].kind != "train":
        return [[i] for i in longest_first]
    groups = max(min(ways * ceil(len(tasks) / (ways * MOST_REPLICAS)), len(tasks) // WORTH_A_STEP), 1)
    size = ceil(len(tasks) / groups)
    return [longest_first[start : start + size] for start in range(0, len(tasks), size)]

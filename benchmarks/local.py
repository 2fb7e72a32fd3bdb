"""What corrections cost inside a client, and robust combination at the server.

A corrected local step is measured against a plain one: LeNet-5, images of 28 x 28, batches of 32, one thread, as in a
worker. All of them take turns, and the median of the ratios counts. Ranking samples by loss, as FedBSS does, is
measured against a forward pass by plain PyTorch over the same samples. Robust combiners get 100 updates of a million
numbers, each combiner in a process of its own, so that its peak of memory can be told.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from statistics import median
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks._rows import row
from fedstrata.client.local_step import RING
from fedstrata.client.probe import CHUNK
from fedstrata.client.trainer import Trainer
from fedstrata.core import registry
from fedstrata.core.client_context import ClientContext
from fedstrata.core.machine.threads import one_thread
from fedstrata.core.messages import Report, Task, add_prefix
from fedstrata.core.steps import Ask, Step
from fedstrata.data.federation import Federation
from fedstrata.engines.local.engine import LocalEngine
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import ArrivedReports

BATCH, CLASSES, STEPS = 32, 10, 8
STEP_GOALS: dict[str, float | None] = {  # by correction; the last two are for information
    "prox": 1.15,
    "scaffold": 1.2,
    "feddyn": 1.2,
    "fedlc": 1.1,
    "fedrs": 1.1,
    "moon": 3.2,
    "clip": None,
    "fednova": None,
}


@dataclass(frozen=True)
class Size:
    """What a client has and how often ways take turns there, and what is combined at the server."""

    batches: int  # of the client's samples
    repeats: int
    clients: int
    numbers: int  # of an update


FULL = Size(batches=RING, repeats=21, clients=100, numbers=1_000_000)
QUICK = Size(batches=STEPS, repeats=1, clients=20, numbers=10_000)


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return ratios of local steps and of looks at samples, and seconds and memory of robust combiners."""
    size = QUICK if quick else FULL
    rows = _robust(size.clients, size.numbers)  # first: a child's peak of memory is at least its parent's present size
    with one_thread():
        return [*_steps(size.batches, size.repeats), *_looks(size.batches, size.repeats), *rows]


def _ratios(plain: Callable[[], None], ways: Mapping[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Time all ways in turn, again and again; give the median of each one's ratio to the plain way beside it."""
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            beside, seconds = (_seconds(each, process_time) for each in (plain, way))  # whatever else is running
            if repeat:  # the first is for warming up
                ratios[name].append(seconds / beside)
    return {name: median(values) for name, values in ratios.items()}


def _seconds(way: Callable[[], object], clock: Callable[[], float] = perf_counter) -> float:
    start = clock()
    way()
    return clock() - start


# ---- inside a client --------------------------------------------------------------------------------------------


def _trainer(batches: int, **asked: Any) -> tuple[Trainer, Callable[[], ClientContext]]:
    """Return a worker after a client's second update, its batches in the ring, and a way to look anew."""
    rng, samples = np.random.default_rng(0), batches * BATCH
    x, y = rng.normal(size=(samples, 1, 28, 28)).astype(np.float32), np.arange(samples) % (CLASSES - 1)
    y[-1] = CLASSES - 1  # a label that only the second client holds
    federation = Federation.from_arrays(x, y, [np.arange(len(x) - 1), [len(x) - 1]], test=(x[:10], y[:10]))
    fixed = {"model.name": "lenet5", "train.batch_size": BATCH, "train.epochs": 1, "train.lr": 0.01}
    work = build_session(describe_experiment(None, None, {**fixed, **asked}, federation, None), federation, None)
    trainer, state = Trainer(work.plan.local, federation.train.x, federation.train.y, len(x)), work.initial_state()
    down = state.model.wire()
    for name, part in work.plan.server_steps.items():
        down |= add_prefix(part.broadcast(state.server_steps[name]), name)
    client, task = federation.client(0), Task(0, 0, 0, down=down)
    _, client_state = trainer.run_task(client, task, {})
    trainer.run_task(client, task, client_state)
    return trainer, partial(trainer.make_context, client, task, client_state)


def _steps(batches: int, repeats: int) -> list[dict[str, Any]]:
    ways = {}
    for name in STEP_GOALS:
        asked = {"method.combiner": name} if name == "fednova" else {"method.corrections": [{"kind": name}]}
        ways[name] = partial(_take_steps, _trainer(batches, **asked)[0])
    ratios = _ratios(partial(_take_steps, _trainer(batches)[0]), ways, repeats)
    return [row(f"local step, {name}", ratios[name], "x plain", at_most=goal) for name, goal in STEP_GOALS.items()]


def _take_steps(trainer: Trainer, steps: int = STEPS) -> None:
    trainer.buf.t.zero_()  # from the first batch of the ring again
    for _ in range(steps):
        trainer.step(BATCH)


def _looks(batches: int, repeats: int) -> list[dict[str, Any]]:
    trainer, look = _trainer(batches)
    rows, x, module = look().client.rows, trainer.buf.x, trainer.local.build().eval()

    @torch.no_grad()
    def forward() -> None:
        for start in range(0, len(rows), CHUNK):
            module(x.index_select(0, torch.from_numpy(rows[start : start + CHUNK])))

    ranking = _ratios(forward, {"ranking": lambda: look().score_samples()}, repeats)["ranking"]
    batch = np.arange(BATCH)
    kinds = {"gradient": "all layers", "head-gradient": "last layer"}
    ways = {of: lambda of=of: look().sample_variance(of, batch) for of in kinds}
    probes = _ratios(partial(_take_steps, trainer, 1), ways, repeats)
    return [
        row("ranking all samples by loss", ranking, "x forward", at_most=1.1),
        *(row(f"gradient variance of a batch, {kinds[of]}", value, "x step") for of, value in probes.items()),
    ]


# ---- at the server ----------------------------------------------------------------------------------------------


def _robust(clients: int, numbers: int) -> list[dict[str, Any]]:
    rows, updates = [], clients * numbers * 4 / 1e6  # MB
    for name in ("median", "trimmed-mean", "norm-clip"):
        with ProcessPoolExecutor(1, get_context("spawn")) as child:
            seconds, memory = child.submit(_combine, name, clients, numbers).result()
        rows.append(row(f"{name} of {clients} updates", seconds, "s", at_most=2.0))
        rows.append(row(f"{name}, memory beside the updates", memory, "MB", at_most=updates / 4))
    return rows


@dataclass(frozen=True)
class _Sent:
    """Stands for workers whose clients all sent an update."""

    updates: Sequence[torch.Tensor]
    room = 0  # for client state: there is none

    def work(self, tasks: Sequence[Task], client_states: Mapping[int, Any]) -> list[tuple[Report, None]]:
        """Return the reports."""
        aggregated = [{"update": self.updates[task.client]} for task in tasks]
        return [
            (Report(t.client, 10 + t.client, 1, 1.0, 1.0, aggregated=s), None)
            for t, s in zip(tasks, aggregated, strict=True)
        ]

    def close(self) -> None:
        """Nothing to end."""


def _combine(name: str, clients: int, numbers: int) -> tuple[float, float]:
    """Return seconds of a combination, the median of three, and by how many MB it raised the peak of memory."""
    random = torch.Generator().manual_seed(0)
    engine = LocalEngine(_Sent([torch.empty(numbers).normal_(generator=random) for _ in range(clients)]))
    step = Step(tuple(Ask(k) for k in range(clients)))
    arrived = ArrivedReports(engine, step, engine.ask(step, [Task(k, 0, 0) for k in range(clients)]), individual=True)
    combiner, before = registry.build("combiners", name, {}, "method.combiner"), _peak()
    view: Any = SimpleNamespace(round=0, note=lambda *_, **__: None)  # with what arrived, that is all it reads
    with one_thread():  # as in a run
        seconds = [_seconds(lambda: combiner.combine(None, view, None, arrived)) for _ in range(3)]
    return median(seconds), _peak() - before


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

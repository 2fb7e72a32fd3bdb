"""What Stratify costs: an epoch against plain PyTorch on the same samples, and the schedule itself at scale.

The planner of single samples is to cost the same however many clients hold a label. When it drew a quarter of all
holders for every chunk, an entry took 5, 39 and 315 microseconds with 100, 1,000 and 10,000 holders (`remaining`: 434
with 1,000, and 4,000 with 10,000).

Batch mode is run as one, on a CNN of 1.66 M parameters and on LeNet-5, against a hand-written loop with
torch.optim.SGD; single-sample mode against a loop with batches of one. Each pair is measured alternately, and the
ratio of the medians counts. Then the paper's Table III: what a round costs in training and in what is sent.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks import _table_three
from benchmarks._rows import row
from fedstrata.core.client_info import ClientInfo, GroundTruth
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.index import Split
from fedstrata.core.machine.threads import cores, threads
from fedstrata.core.steps import View
from fedstrata.data.federation import Federation
from fedstrata.engines.local.engine import InProcessPool, LocalEngine
from fedstrata.methods.drivers.fused import Stock
from fedstrata.methods.schedules.batches import Reserve, batches
from fedstrata.methods.schedules.draws import Draws
from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.hops import Hop, hops
from fedstrata.methods.schedules.stratified import Stratified
from fedstrata.methods.schedules.supply import Pools
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round

CLIENTS, CLASSES = 10, 10
HOLDERS, EACH = 100, 10  # of each label of a schedule, and samples that each of them has of it


@dataclass(frozen=True)
class Size:
    """How much is trained, and how much is scheduled."""

    repeats: int
    batched: int  # samples of an epoch in batches
    single: int  # samples of an epoch in single samples
    clients: int  # of a schedule
    labels: int
    holders: tuple[int, ...]  # of a label that is planned for, and how many entries
    planned: int
    sent: int  # samples of a round whose messages are packed


FULL = Size(
    repeats=5,
    batched=2_560,
    single=256,
    clients=10_000,
    labels=1_000,
    holders=(100, 1_000, 10_000),
    planned=30_000,
    sent=192,
)
QUICK = Size(repeats=1, batched=256, single=32, clients=200, labels=20, holders=(10, 20), planned=300, sent=20)


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return two ratios a model, and seconds and memory of schedules at scale."""
    rows, size = [], QUICK if quick else FULL
    for model in ("cnn-mcmahan", "lenet5"):
        ratio = _ratio(model, "stratify-batch", 64, size.batched, size.repeats)
        rows.append(row(f"batch epoch, fused, {model}", ratio, "x plain", at_most=1.15))
    for model in ("cnn-mcmahan", "lenet5"):
        ratio = _ratio(model, "stratify-single", 1, size.single, size.repeats)
        rows.append(row(f"single-sample epoch, {model}", ratio, "x plain", at_most=1.25))
    for mode in ("batch", "single"):
        seconds = _schedule(mode, size.clients, size.labels, answers=False)
        rows.append(row(f"schedule and selection, {mode}", seconds, "s", at_most=10.0))
    for mode in ("batch", "single"):
        seconds = _schedule(mode, size.clients, size.labels, answers=True)
        rows.append(row(f"the same with clients running out, {mode}", seconds, "s", at_most=20.0))
    for clients in ("uniform", "weighted", "remaining", "spread"):
        for holders in size.holders:
            seconds = _planning(clients, holders, size.planned)
            name = f"planning single samples, {clients}, {holders:,} holders"
            rows.append(row(name, 1e6 * seconds / size.planned, "us/entry", at_most=50.0))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return [*rows, row("memory of all of this", memory, "GB", at_most=1.0), *_table_three.rows(size.sent, quick)]


def _ratio(model: str, method: str, batch: int, samples: int, repeats: int) -> float:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(samples, 1, 28, 28)).astype(np.float32), np.arange(samples) % CLASSES
    rows = np.array_split(np.argsort(y, kind="stable"), CLIENTS)  # one label each
    federation = Federation.from_arrays(x, y, rows, test=(x[:10], y[:10]))
    asked = {
        "model.name": model,
        "train.batch_size": max(batch, 2),
        "train.lr": 0.01,
        "train.optimizer": {"kind": "sgd", "momentum": 0.9 if batch > 1 else 0.0},
        "train.rounds": 100,
    }
    work = build_session(describe_experiment(None, method, asked, federation, None), federation, None)
    state, engine = work.initial_state(), LocalEngine(InProcessPool(work.plan.local, federation))

    def ours() -> None:
        run_round(work.plan, state, work.plan.view(work.client_info, state.round, lambda *_, **__: None), engine)
        state.round += 1

    module = work.plan.local.build()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9 if batch > 1 else 0.0)
    images, labels = federation.train.x, federation.train.y

    def plain() -> None:
        order = torch.randperm(samples)
        for start in range(0, samples, batch):
            own = order[start : start + batch]
            optimizer.zero_grad()
            cross_entropy(module(images[own]), labels[own]).backward()
            optimizer.step()

    return _alternately(ours, plain, repeats)


def _alternately(ours: Callable[[], None], plain: Callable[[], None], repeats: int) -> float:
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for seconds, way in zip(times, (ours, plain), strict=True):
            start = perf_counter()
            with threads(cores()):  # ours takes as many as it wants
                way()
            if repeat:  # the first is for warming up
                seconds.append(perf_counter() - start)
    return median(times[0]) / median(times[1])


def _schedule(mode: str, clients: int, labels: int, answers: bool) -> float:
    """Draw a schedule and choose clients for all of it: every label has as many holders.

    With `answers`, clients refuse what they have no more of, and another one is found; without, nobody ever does.
    """
    rng = np.random.default_rng(0)
    counts = np.zeros((clients, labels), dtype=np.int32)
    for label in range(labels):
        counts[rng.choice(clients, HOLDERS, replace=False), label] = EACH
    schedule, start = Stratified(), perf_counter()
    epoch, pools, stock = _begun(schedule, counts)
    answer: Any = None
    nothing: list[int] = []
    chain = hops(epoch, pools, epoch.length, schedule.chunk) if mode == "single" else None
    moves = chain or batches(epoch, pools, epoch.length, 64)
    while True:
        try:
            move: Any = moves.send(answer)
        except StopIteration:
            break
        if isinstance(move, Hop):
            answer = stock.refuses(move.client, move.codes, 2) if answers else nothing
        else:
            asked = answers and isinstance(move, Reserve)
            answer = {client: stock.refuses(client, own, 2) if asked else nothing for client, own in move.codes.items()}
    assert epoch.over == labels * HOLDERS * EACH
    return perf_counter() - start


def _planning(clients: Literal["uniform", "weighted", "remaining", "spread"], holders: int, entries: int) -> float:
    """Choose clients for single samples of three labels, of which everybody holds some; nobody ever refuses."""
    counts = np.random.default_rng(0).integers(1, 2 * max(entries // holders, 2), (holders, 3))
    schedule = Stratified(clients=clients, length=entries)
    start = perf_counter()
    epoch, pools, _ = _begun(schedule, counts)
    moves = hops(epoch, pools, epoch.length, schedule.chunk)
    next(moves)
    with suppress(StopIteration):
        while True:
            moves.send([])
    assert epoch.over == entries
    return perf_counter() - start


def _begun(schedule: Stratified, counts: np.ndarray) -> tuple[Epoch, Pools, Stock]:
    """Draw a schedule for clients that hold so many samples of each label."""
    clients, labels = counts.shape
    known = {"labels": counts > 0, "totals": counts.sum(0), "counts": counts}
    client_info = ClientInfo(clients, labels, np.arange(clients), np.arange(clients), known, _world(counts))
    streams = {name: np.random.default_rng(1) for name in ("labels", "clients")}
    space = ParameterSpace((), (), slice(0), slice(0), slice(0))
    draw, note = (lambda purpose, **_: streams[purpose]), (lambda *_, **__: None)
    view = View(0, 1, clients, client_info.holders, client_info, space, draw, note)
    epoch = schedule.epoch(0, view)
    weights = None if schedule.clients == "uniform" else counts
    pools = Pools(epoch.supply, Draws(streams["clients"]), note, weights, schedule.clients, size=schedule.pool)
    return epoch, pools, Stock.of(schedule, view, pools)


def _world(counts: np.ndarray) -> GroundTruth:
    """Return clients that hold so many samples of each label."""
    owner, label = np.nonzero(counts)
    many = counts[owner, label]
    starts = np.concatenate([[0], np.cumsum(counts.sum(1))])
    return GroundTruth(Split(np.arange(many.sum()), starts), np.repeat(label, many), counts.shape[1])

"""How a round's time and the memory grow: with the clients of a round, with those there are, and with the workers.

A tiny network (64-32-10) and clients of ten samples of 64 bytes: whole runs by `fedstrata.train`, with their events and
checkpoints, evaluated at the end only. For workers, LeNet-5 and ten clients of 600 images, rounds alone. Every run has
a process of its own, whose peak of memory is told: samples, clients and server; and what workers have beside it. Sizes
take turns, and medians count.
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import fedstrata
from benchmarks._rows import row
from fedstrata.core.machine.threads import cores, one_thread
from fedstrata.data.federation import Federation
from fedstrata.engines.local.start import LocalEngineOptions
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round

HOLDS, CLASSES, WARM = 10, 10, 4


@dataclass(frozen=True)
class Size:
    """What grows, and how much of everything else there is."""

    selected: tuple[int, ...]
    population: tuple[int, ...]
    k: int  # selected of any population
    rounds: int
    images: int  # of a client of LeNet-5
    turns: int


FULL = Size((10, 30, 100, 300, 1_000), (1_000, 10_000, 100_000, 1_000_000), k=100, rounds=24, images=600, turns=3)
QUICK = Size((50,), (100, 1_000), k=20, rounds=WARM + 4, images=32, turns=1)


@dataclass(frozen=True)
class Told:
    """What a run took."""

    registered: float  # seconds from samples in memory to a federation that is ready to start
    round: float  # seconds
    memory: float  # MB, at most


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return seconds and memory, in this order: by selected clients, by population, by workers."""
    size = QUICK if quick else FULL
    rows, most, fewest, everybody = [], max(size.selected), min(size.population), max(size.population)
    run = partial(_run, rounds=size.rounds)
    for selected, runs in _in_turn(run, [(most, selected) for selected in size.selected], size.turns).items():
        rows += _two(f"{selected[1]:,} selected of {most:,}", runs)
    by_population = _in_turn(run, [(clients, size.k) for clients in size.population], size.turns)
    for (clients, _), runs in by_population.items():
        name, largest = f"{size.k} selected of {clients:,}", clients == everybody
        rows += _two(name, runs, 4_000.0 if largest else None)
        seconds = median(told.registered for told in runs)
        rows.append(row(f"{name}, registration", seconds, "s", at_most=30.0 if largest else None))
    few, many = by_population[fewest, size.k], by_population[everybody, size.k]
    grown = median(b.round / a.round for a, b in zip(few, many, strict=True))
    rows.append(row(f"a round, {everybody:,} against {fewest:,}", grown, "x", at_most=1.3))
    numbers = sorted({1, min(2, cores()), cores()})
    on_workers = _in_turn(partial(_workers, images=size.images), [(workers,) for workers in numbers], size.turns)
    for (workers,), runs in on_workers.items():
        rows += _two(f"LeNet-5 on {workers} worker{'s' * (workers > 1)}", runs)
    return rows


def _in_turn(way: Callable[..., Told], sizes: list[tuple[int, ...]], turns: int) -> dict[tuple[int, ...], list[Told]]:
    """Run every size again and again, each time in a process of its own."""
    told: dict[tuple[int, ...], list[Told]] = {size: [] for size in sizes}
    for _ in range(turns):
        for size in sizes:
            with ProcessPoolExecutor(1, get_context("spawn")) as child:
                told[size].append(child.submit(way, *size).result())
    return told


def _two(name: str, runs: list[Told], goal: float | None = None) -> list[dict[str, Any]]:
    seconds, memory = median(told.round for told in runs), max(told.memory for told in runs)
    return [row(f"{name}, a round", seconds, "s"), row(f"{name}, memory", memory, "MB", at_most=goal)]


def _run(clients: int, selected: int, rounds: int) -> Told:
    """Register clients and train for some rounds."""
    rng, ends = np.random.default_rng(0), []
    x = rng.integers(0, 255, (clients * HOLDS, 64), dtype=np.uint8)
    y, owner = rng.integers(0, CLASSES, len(x)), np.repeat(np.arange(clients), HOLDS)
    start = perf_counter()
    federation = Federation.from_arrays(x, y, owner, test=(x[:100], y[:100]))
    asked = {"model.name": "mlp", "model.hidden": (32,), "train.batch_size": HOLDS, "train.epochs": 1, "train.lr": 0.01}
    asked |= {"train.rounds": rounds, "train.evaluate.every": rounds, "train.clients_per_round": selected}
    build_session(describe_experiment(None, "fedavg", asked, federation, None), federation, None)
    registered = perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        fedstrata.train(
            overrides=asked | {"engine.device": "cpu", "engine.workers": 1},
            method="fedavg",
            federation=federation,
            out=Path(folder) / "run",
            watch=lambda event: ends.append(perf_counter()) if event["event"] == "round" else None,
        )
    return Told(registered, float(np.median(np.diff(ends)[WARM:-1])), _peak())


def _workers(workers: int, images: int) -> Told:
    """Run rounds of ten clients on so many workers."""
    rng, clients = np.random.default_rng(0), 100
    x = rng.standard_normal((clients * images, 1, 28, 28), dtype=np.float32)
    y, owner = np.arange(len(x)) % CLASSES, np.repeat(np.arange(clients), images)
    federation = Federation.from_arrays(x, y, owner, test=(x[:100], y[:100]))
    asked = {"model.name": "lenet5", "train.batch_size": 32, "train.epochs": 1, "train.clients_per_round": 10}
    work, seconds = build_session(describe_experiment(None, "fedavg", asked, federation, None), federation, None), []
    place = LocalEngineOptions(workers=workers, device="cpu")
    engine, state = place.start(work.plan.local, federation, 0, _ignore), work.initial_state()
    with one_thread():
        for round in range(8):
            start = perf_counter()
            run_round(work.plan, state, work.plan.view(work.client_info, round, _ignore), engine)
            seconds.append(perf_counter() - start)
    beside = _of_workers()
    engine.close()
    return Told(0.0, median(seconds[2:]), _peak() + beside)


def _ignore(*_: Any, **__: Any) -> None:
    """Keep no events."""


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _of_workers() -> float:
    """Return the MB that child processes have of their own, where the system tells."""
    mine, total = str(os.getpid()), 0
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            if (path / "stat").read_text().rpartition(")")[2].split()[1] == mine:
                lines = (path / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Private"))
    return total / 1024

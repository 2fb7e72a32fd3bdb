"""Our engine on the CPU against others on the same work: what a round takes, and how soon the first one is done.

The others are the naive loop (a deep copy of the model and a DataLoader a client) and pfl-research, one process with
one thread each, and Flower's simulation runtime with its defaults, two cores a client. Everybody trains the same
network on the same samples of as many clients, by plain FedAvg without evaluation. They take turns, a process each
time; a round's time is the median of the rounds after the second, and the ratio to ours beside it counts, the median
over turns.

Before all that: what a newcomer waits for, `fedstrata run` as it is, until its first round and until its end.

What is not their default, or not common, but may suit them better is measured beside it, for information: one core a
client for Flower, and with images, where that helps, all cores for the other two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks._command import import_torch, run_command
from benchmarks._rows import row
from benchmarks.peers import PINS, last_line, python_of, say
from benchmarks.peers.job import CLASSES, Job
from fedstrata.core.machine.threads import cores

TURNS, WARM = 3, 2  # turns of everybody, and rounds of each that do not count
HERE = Path(__file__).parents[1]
SOONER = 5.0  # our first round against Flower's
SOON = 3.5  # seconds until the first round of the command as it is


@dataclass(frozen=True)
class Workload:
    """What is trained, and how many times as long each of the others should take at least."""

    name: str
    job: Job
    shape: tuple[int, ...]
    goals: Mapping[str, float]
    others: tuple[str, ...] = ("naive, all cores", "flower, one core a client", "pfl, all cores")  # for information


WORKLOADS = (
    Workload(
        "W2 tiny MLP",
        Job("mlp", 400, 40, 35, 10, 40),
        (64,),
        {"naive": 8.0, "flower": 40.0, "pfl": 6.0},
        ("flower, one core a client",),
    ),
    Workload("W1L LeNet-5", Job("lenet5", 100, 10, 600, 32, 8), (1, 28, 28), {"naive": 1.6, "flower": 2.5, "pfl": 1.9}),
    Workload("W1 CNN", Job("cnn", 100, 10, 600, 32, 6), (1, 28, 28), {"naive": 1.8, "flower": 1.9, "pfl": 1.8}),
)
QUICK = tuple(
    replace(large, job=replace(large.job, clients=10, per_round=4, samples=32, rounds=WARM + 2), others=())
    for large in WORKLOADS[:2]
)
SAID = {"naive": "the naive loop", "flower": "Flower", "pfl": "pfl-research"}


def versions() -> dict[str, str]:
    """Return what is compared with."""
    return {pin.partition("[")[0]: pin.partition("==")[2] for pin in PINS.values()}


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return seconds of our rounds, and ratios of the others to them; quickly, of the naive loop only."""
    rows = list(_as_it_is(1 if quick else TURNS))
    for workload in QUICK if quick else WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            job = replace(workload.job, data=str(Path(folder) / "samples.npz"), cores=cores())
            _write(job, workload.shape)
            turns = _in_turn(job, workload.others, 1 if quick else TURNS, () if quick else PINS)
            rows += list(_rows(workload, turns))
    return rows


def _as_it_is(turns: int) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        taken = [run_command(Path(folder) / str(turn), "run", {}) for turn in range(turns)]
    first = median(one.first or one.seconds for one in taken)
    yield row("`fedstrata run`: first round after the command", first, "s", at_most=SOON)
    yield row("`fedstrata run`: the whole command", median(one.seconds for one in taken), "s")
    yield row("import torch, alone", median(import_torch() for _ in range(turns)), "s")


def _write(job: Job, shape: tuple[int, ...]) -> None:
    rng, samples = np.random.default_rng(0), job.clients * job.samples
    np.savez(job.data, x=rng.standard_normal((samples, *shape), dtype=np.float32), y=np.arange(samples) % CLASSES)


Turn = Mapping[str, list[float]]  # seconds of every round, by runner


def _in_turn(job: Job, others: Iterable[str], turns: int, peers: Iterable[str]) -> list[Turn]:
    """Let us, the naive loop and these peers run the job, again and again; who fails once is left out from then on."""
    threads = {"ours": 1, "naive": 1, "flower": min(2, job.cores), "pfl": 1}
    threads |= {other: job.cores if other.endswith("all cores") else 1 for other in others}
    pythons = {"ours": sys.executable, "naive": sys.executable, **{peer: python_of(peer) for peer in peers}}
    runners = {runner: python for runner in threads if (python := pythons.get(_module(runner))) is not None}
    told: list[Turn] = []
    for number in range(turns):
        turn = {}
        say(f"{job.model}: turn {number + 1} of {turns}")
        for runner, python in list(runners.items()):
            try:
                turn[runner] = _timed(str(python), _module(runner), replace(job, threads=threads[runner]))
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                if runner == "ours":
                    raise
                say(f"{runner} is left out of {job.model}, because it cannot be run: {last_line(error)}")
                del runners[runner]
        told.append(turn)
    return [{runner: turn[runner] for runner in runners} for turn in told]


def _module(runner: str) -> str:
    return runner.partition(",")[0]


def _timed(python: str, module: str, job: Job) -> list[float]:
    """Start a runner, and read the seconds of its rounds, of the first one since the start."""
    own = python == sys.executable  # others find nothing of ours but the runner
    environment = {key: value for key, value in os.environ.items() if own or key != "PYTHONPATH"}
    command = [python, "-m", "benchmarks.peers", module, replace(job, began=time.time()).dump()]
    done = subprocess.run(command, cwd=HERE, env=environment, check=True, capture_output=True, text=True, timeout=900)
    seconds: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds


def _rows(workload: Workload, turns: list[Turn]) -> Iterator[dict[str, Any]]:
    name = workload.name
    ours = [median(turn["ours"][WARM:]) for turn in turns]
    yield row(f"{name}, a round of ours", median(ours), "s")
    for peer, goal in workload.goals.items():
        yield row(f"{name}, {SAID[peer]}", _ratio(turns, peer, steady=True), "x ours", at_least=goal)
    for other in workload.others:
        said = SAID[_module(other)] + other.removeprefix(_module(other))
        yield row(f"{name}, {said}", _ratio(turns, other, steady=True), "x ours")
    yield row(f"{name}, our first round after start", median(turn["ours"][0] for turn in turns), "s")
    yield row(f"{name}, Flower's first round", _ratio(turns, "flower", steady=False), "x ours", at_least=SOONER)


def _ratio(turns: list[Turn], runner: str, steady: bool) -> float | None:
    """Return how many times as long as ours a runner takes for a round, or for the first one."""
    if any(runner not in turn for turn in turns):
        return None
    times = [[median(turn[who][WARM:]) if steady else turn[who][0] for who in (runner, "ours")] for turn in turns]
    return median(theirs / ours for theirs, ours in times)

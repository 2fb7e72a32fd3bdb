"""The engine on a Ray cluster against the local one and Flower's simulation, which runs on Ray too, on the same work.

Clusters are made of nodes on this machine, which share its cores: one node with a worker a core, and as many nodes as
cores with one worker each. So this measures what the engine adds, and not how it grows; docs/scale.md reckons that from
these figures. Everybody takes turns, a process each time; a round's time is the median of the rounds after the second,
and ratios are medians over turns. Memory is the growth of every process over many rounds of tiny clients.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._rows import row
from benchmarks.engine import HERE, WARM, WORKLOADS, _write
from benchmarks.peers import PINS, last_line, python_of, say
from benchmarks.peers.job import Job
from fedstrata.core.machine.threads import cores

TURNS, LONG, LONGEST = 3, 2000, 600.0
MOST, LEAK = 1.25, 1.0  # times the local engine; kilobytes a round that a process may grow by
LOCAL, ONE, TWO, FLOWER = "the local engine", "one node", "two nodes", "Flower's simulation"


def versions() -> dict[str, str]:
    """Return what is compared with."""
    return {"ray": version("ray"), "flwr": PINS["flower"].partition("==")[2]}


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return rounds a second, overhead, bytes and growth of memory; quickly, of few tiny clients without Flower."""
    workloads = {large.name: large for large in WORKLOADS}
    large, tiny = workloads["W1 CNN"], workloads["W2 tiny MLP"]
    if quick:
        few = {"clients": 10, "per_round": 4, "samples": 32}
        large = replace(large, job=replace(large.job, **few, model="lenet5", rounds=WARM + 2))
    long = replace(tiny.job, clients=20, per_round=4, rounds=12 if quick else LONG)
    with tempfile.TemporaryDirectory() as folder:
        job = replace(large.job, data=str(Path(folder) / "large.npz"), cores=max(cores(), 2))
        long = replace(long, data=str(Path(folder) / "tiny.npz"), cores=job.cores)
        _write(job, large.shape)
        _write(long, tiny.shape)
        turns = [run_turn(job, not quick) for _ in range(1 if quick else TURNS)]
        grown = run_long(long)
    return [*tell_speed(large.name, turns), *tell_growth(*grown)]


Told = tuple[list[float], dict[str, Any]]  # seconds of every round, and what else a runner tells


def run_turn(job: Job, peers: bool) -> dict[str, Told]:
    """Let everybody run the job once."""
    runners = {LOCAL: ("ours", job), ONE: ("on_ray", job), TWO: ("on_ray", replace(job, nodes=2))}
    if peers:
        runners[FLOWER] = ("flower", replace(job, threads=1))  # an actor a core, which suits it best here
    turn: dict[str, Told] = {}
    for runner, (module, own) in runners.items():
        try:
            turn[runner] = _timed(module, own)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            if runner != FLOWER:
                raise
            say(f"{runner} is left out, because it cannot be run: {last_line(error)}")
            continue
        say(f"{job.model}, {runner}: {median(turn[runner][0][WARM:]):.3f} s a round")
    return turn


def tell_speed(name: str, turns: list[dict[str, Told]]) -> Iterator[dict[str, Any]]:
    """Tell what rounds took, in all turns that a runner took part in."""
    times = [{runner: median(seconds[WARM:]) for runner, (seconds, _) in turn.items()} for turn in turns]

    def ratio(runner: str, to: str) -> float | None:
        both = [turn[runner] / turn[to] for turn in times if runner in turn]
        return median(both) if both else None

    for runner in (LOCAL, ONE, TWO, FLOWER):
        own = [turn[runner] for turn in times if runner in turn]
        yield row(f"{name}, {runner}", 1 / median(own) if own else None, "rounds/s")
    yield row(f"{name}, {ONE} with 2 workers", ratio(ONE, LOCAL), "x local", at_most=MOST)
    yield row(f"{name}, {TWO} with 1 worker each", ratio(TWO, LOCAL), "x local")
    yield row(f"{name}, {FLOWER} against one node", ratio(FLOWER, ONE), "x ours")
    stored = turns[0][TWO][1]["bytes"]
    yield row(f"{name}, through the object store of two nodes", stored / 1e6, "MB a round")


def run_long(job: Job) -> Told:
    """Run many rounds of tiny clients on two nodes."""
    say(f"memory over {job.rounds} rounds")
    return _timed("on_ray", replace(job, nodes=2))


def tell_growth(seconds: list[float], told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Tell what a round without much work takes, and how every process grows."""
    yield row("a round of 4 tiny clients on two nodes", median(seconds[WARM:]), "s")
    slopes: dict[str, float] = told["slopes"]
    for process, slope in slopes.items():
        say(f"  {process}: {slope:+.3f} KB a round")
    worst = max(slopes.values()) if slopes else None
    yield row(f"memory over {LONG:,} rounds, the process that grows most", worst, "KB a round", at_most=LEAK)


def _flower() -> str | None:
    """Return the interpreter for Flower: this one, where it has the version that is compared with, or its own."""
    try:
        if version("flwr") == PINS["flower"].partition("==")[2]:
            return sys.executable
    except PackageNotFoundError:
        pass
    python = python_of("flower")
    return None if python is None else str(python)


def _timed(module: str, job: Job) -> Told:
    """Start a runner; return the seconds of its rounds, and what it told beside them."""
    python = _flower() if module == "flower" else sys.executable
    if python is None:
        raise ValueError("it is not installed")
    own = python == sys.executable
    environment = {key: value for key, value in os.environ.items() if own or key != "PYTHONPATH"}
    # Ray's workers yield to everything else by default; here they are compared with processes that do not
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    command = [python, "-m", "benchmarks.peers", module, replace(job, began=time.time()).dump()]
    done = subprocess.run(
        command, cwd=HERE, env=environment, check=False, capture_output=True, text=True, timeout=LONGEST
    )
    if done.returncode:
        raise subprocess.SubprocessError(done.stderr[-2000:])
    lines = [line for line in done.stdout.splitlines() if line.startswith(("{", "["))]
    told: dict[str, Any] = json.loads(lines[-2]) if len(lines) > 1 and lines[-2].startswith("{") else {}
    return json.loads(lines[-1]), told

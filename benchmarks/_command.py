"""A command of ours as a user types it, and when its first round was over; and the naive loop on the same."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fedstrata.core.errors import FedstrataError
from fedstrata.runs.training import describe_experiment


@dataclass(frozen=True)
class Taken:
    """What a command took."""

    seconds: float
    first: float | None  # until the first round was over


def run_command(
    out: Path, verb: str, asked: Mapping[str, Any], methods: str | None = None, jobs: int | None = None
) -> Taken:
    """Run `fedstrata VERB` with these settings; its processes are new, and the files that it reads are not."""
    settings = [part for key, value in asked.items() for part in ("--set", f"{key}={_toml(value)}")]
    several = ["--methods", methods, "--seeds", "2"] if methods else []
    several += ["--jobs", str(jobs)] if jobs else []
    began, first, events = time.perf_counter(), None, out / "events.jsonl"
    command = [sys.executable, "-m", "fedstrata", verb, *several, *settings, "--out", str(out), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        if first is None and events.exists() and '"event": "round"' in events.read_text():
            first = time.perf_counter() - began
        time.sleep(0.01)
    if process.returncode:
        raise FedstrataError(f"{' '.join(command)} ended with exit code {process.returncode}")
    return Taken(time.perf_counter() - began, first)


def run_naively(path: Path, asked: Mapping[str, Any]) -> float:
    """Return what the naive loop takes on a GPU for all rounds of an experiment, from a tenth of them."""
    experiment = describe_experiment(None, None, asked, None, None)
    path.write_text(experiment.to_toml())
    some = max(experiment.train.rounds // 10, 3)
    command = [sys.executable, "-m", "benchmarks._naive_gpu", str(path), str(some)]
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    whole, told = time.perf_counter() - started, json.loads(done.stdout.splitlines()[-1])
    return whole + (experiment.train.rounds - some) * float(median(told["rounds"]))


def import_torch() -> float:
    """Return the seconds that a new process takes to import torch, and nothing else."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def _toml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)

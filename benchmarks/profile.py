"""Where a round on the CPU goes: what is left to win where `engine` misses a goal.

Of a worker's time, the share inside PyTorch's operators cannot be had back without other kernels; two workers cannot be
faster than two processes that only compute; and the first round cannot come before torch is imported, here and in the
workers.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks._rows import row
from benchmarks.peers.job import CLASSES, LR, network
from fedstrata.core.machine.threads import one_thread
from fedstrata.data.federation import Federation
from fedstrata.engines.local.start import LocalEngineOptions
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round

BUSY = """
import sys, time, torch
from torch import nn
torch.set_num_threads(1)
layers = nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 64, 5, padding=2)).requires_grad_()
x = torch.randn(32, 1, 28, 28)
layers(x).sum().backward()
print("ready", flush=True)
sys.stdin.readline()
end, steps = time.perf_counter() + float(sys.argv[1]), 0
while time.perf_counter() < end:
    layers(x).sum().backward()
    steps += 1
print(steps)
"""


WORK = {"W1L LeNet-5": "lenet5", "W1 CNN": "cnn"}


@dataclass(frozen=True)
class Size:
    """How much is done."""

    samples: int  # of a client
    rounds: int
    busy: float  # seconds of computing


FULL = Size(samples=600, rounds=3, busy=5.0)
QUICK = Size(samples=32, rounds=1, busy=0.5)


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return shares, ratios and seconds; none of them has a goal."""
    rows, size = [], QUICK if quick else FULL
    for name, model in WORK.items():
        share = _inside(model, size.samples, size.rounds)
        rows.append(row(f"{name}: inside PyTorch's operators", share, "of a worker"))
    alone, together = _steps(1, size.busy), _steps(2, size.busy)
    rows.append(row("convolutions in two processes against one", together / alone, "x"))
    for what, code in {
        "torch": "import torch",
        "a worker's process": "import fedstrata.engines.local.worker_process",
    }.items():
        rows.append(row(f"importing {what}", _seconds(code), "s"))
    return rows


def _inside(model: str, samples: int, rounds: int) -> float:
    """Run rounds of two clients on one worker, and give the share of the time that operators report."""
    rng, clients = np.random.default_rng(0), 4
    x = rng.standard_normal((clients * samples, 1, 28, 28), dtype=np.float32)
    y, rows = np.arange(len(x)) % CLASSES, list(np.arange(len(x)).reshape(clients, samples))
    federation, module = Federation.from_arrays(x, y, rows, test=(x[:CLASSES], y[:CLASSES])), network(model)
    asked = {"train.clients_per_round": 2, "train.batch_size": 32, "train.epochs": 1, "train.lr": LR}
    work = build_session(describe_experiment(None, "fedavg", asked, federation, module), federation, module)
    engine, state = (
        LocalEngineOptions(device="cpu", workers=1).start(work.plan.local, federation, 0, _ignore),
        work.initial_state(),
    )

    def one_round() -> None:
        run_round(work.plan, state, work.plan.view(work.client_info, state.round, _ignore), engine)
        state.round += 1

    with one_thread():
        for _ in range(2):  # starting the profiler for the first time takes seconds
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                began = time.perf_counter()
                for _ in range(rounds):
                    one_round()
                took = time.perf_counter() - began
    engine.close()
    return sum(event.self_cpu_time_total for event in profile.key_averages()) * 1e-6 / took


def _steps(processes: int, seconds: float) -> int:
    """Return the steps that so many processes make at the same time."""
    command = [sys.executable, "-c", BUSY, str(seconds)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return sum(int(process.communicate()[0]) for process in running)


def _seconds(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def _ignore(*_: Any, **__: Any) -> None:
    """Keep no events."""

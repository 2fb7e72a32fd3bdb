"""On a GPU, as a user runs it: whole commands on real data, start, evaluation and checkpoints included.

Fashion-MNIST and CIFAR-10 with normalisation (and, for CIFAR-10, crop and flip) through `fedstrata run`, against the
naive loop (`_naive_gpu.py`) on the same samples, network and clients, also from start to end. The naive loop runs a
tenth of the rounds, and the rest is reckoned from them. Methods whose clients keep state are compared with FedAvg's
command. A comparison of 14 methods with two seeds is one `fedstrata compare`. Stratify in batch mode is compared with a
plain loop over as many batches of pooled data. A method's first round comes after `import torch`, which stands beside.

Single rounds on noise are in `gpu_rounds.py`, single steps, with what was tried and not kept, in `gpu_steps.py`.

Data sets are read from the data folder; what is not there is not measured: `fedstrata data fetch fashion-mnist`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks._command import import_torch, run_command
from benchmarks._rows import row
from fedstrata.data import store
from fedstrata.runs.training import describe_experiment

ROUNDS = 150
FASHION = {
    "data.name": "fashion-mnist",
    "data.clients": 100,
    "data.partition.kind": "dirichlet-class",
    "data.partition.alpha": 0.1,
    "train.clients_per_round": 10,
    "train.epochs": 5,
    "train.batch_size": 32,
    "train.lr": 0.02,
    "model.name": "cnn-mcmahan",
    "engine.precision": "tf32",
}
CIFAR = FASHION | {
    "data.name": "cifar10",
    "data.clients": 20,
    "data.partition.alpha": 0.5,
    "train.epochs": 2,
    "train.batch_size": 64,
    "train.augment.crop": 4,
    "train.augment.flip": True,
    "model.name": "resnet18",
    "model.norm": "gn",
    "engine.precision": "bf16",
}
STRATIFY = FASHION | {"method.name": "stratify-batch", "data.clients": 10, "train.batch_size": 64}
STATEFUL = ("scaffold", "feddyn", "moon")
METHODS = "fedavg,fedprox,scaffold,feddyn,moon,fednova,fedadam,fedyogi,fedlc,fedrs,fedexp,fedpbs,flips,power-of-choice"
COMPARED = 40  # rounds of each cell


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return ratios of whole commands."""
    if not torch.cuda.is_available():
        print("torch sees no GPU: nothing is measured", file=sys.stderr)
        return [row("runs on a GPU", None, "x", at_least=8.0)]
    with tempfile.TemporaryDirectory() as folder:
        return list(_real(Path(folder), 10 if quick else ROUNDS, 5 if quick else COMPARED))


def _real(folder: Path, rounds: int, compared: int) -> Iterator[dict[str, Any]]:
    if "fashion-mnist" in store.names():
        asked = FASHION | {"train.rounds": rounds}
        ours = run_command(folder / "fedavg", "run", asked | {"method.name": "fedavg"})
        naive = _naive(folder / "naive.toml", asked)
        yield row("fashion-mnist, CNN tf32: a run of ours", ours.seconds, "s")
        yield row("fashion-mnist, CNN tf32: the naive loop", naive / ours.seconds, "x ours", at_least=8.0)
        yield row("fashion-mnist, CNN tf32: first round after the command", ours.first, "s", at_most=5.0)
        yield row("import torch, alone", import_torch(), "s")
        for method in STATEFUL:
            other = run_command(folder / method, "run", asked | {"method.name": method})
            yield row(f"fashion-mnist, {method} against fedavg", other.seconds / ours.seconds, "x", at_most=1.4)
        cells = run_command(folder / "cells", "compare", asked | {"train.rounds": compared}, METHODS)
        yield row(f"fashion-mnist, 14 methods x 2 seeds x {compared} rounds", cells.seconds, "s", at_most=180.0)
        asked = STRATIFY | {"train.rounds": rounds}
        ours, plain = run_command(folder / "stratify", "run", asked), _naive(folder / "stratify.toml", asked)
        yield row(
            f"fashion-mnist, Stratify batch, {asked['train.rounds']} epochs: a plain loop over pooled batches",
            plain / ours.seconds,
            "x ours",
            at_least=4.0,
        )
    else:
        yield row("fashion-mnist, CNN tf32: the naive loop", None, "x ours", at_least=8.0)
    if "cifar10" in store.names():
        asked = CIFAR | {"train.rounds": max(rounds // 3, 5)}
        ours = run_command(folder / "cifar", "run", asked)
        naive = _naive(folder / "cifar.toml", asked)
        yield row("cifar10, ResNet-18 GN bf16, crop and flip: a run of ours", ours.seconds, "s")
        yield row(
            "cifar10, ResNet-18 GN bf16, crop and flip: the naive loop", naive / ours.seconds, "x ours", at_least=4.0
        )
    else:
        yield row("cifar10, ResNet-18 GN bf16, crop and flip: the naive loop", None, "x ours", at_least=4.0)


def _naive(path: Path, asked: Mapping[str, Any]) -> float:
    """Return what the naive loop takes for all rounds, from a tenth of them."""
    experiment = describe_experiment(None, None, asked, None, None)
    path.write_text(experiment.to_toml())
    some = max(experiment.train.rounds // 10, 3)
    command = [sys.executable, "-m", "benchmarks._naive_gpu", str(path), str(some)]
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    whole, told = time.perf_counter() - started, json.loads(done.stdout.splitlines()[-1])
    return whole + (experiment.train.rounds - some) * median(told["rounds"])

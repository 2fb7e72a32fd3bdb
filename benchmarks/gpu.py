"""On a GPU, as a user runs it: whole commands on real data, start, evaluation and checkpoints included.

Fashion-MNIST with normalisation through `fedstrata run`, against the naive loop (`_naive_gpu.py`) on the same samples,
network and clients, also from start to end. The naive loop runs a tenth of the rounds, and the rest is reckoned from
them. Methods whose clients keep state are compared with FedAvg's command; MOON, whose step has two forward passes more
beside a forward and a backward one, with FedAvg's and as much arithmetic. A comparison of 14 methods with two seeds is
one `fedstrata compare`. Stratify in batch mode is compared with a plain loop over as many batches of pooled data. A
method's first round comes after `import torch`, which is measured before: the first of a machine reads it from the
disk.

CIFAR-10 is in `gpu_cifar10.py`, single rounds on noise in `gpu_rounds.py`, single steps, with what was tried and not
kept, in `gpu_steps.py`. The data set is read from the data folder: `fedstrata data fetch fashion-mnist`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks._command import import_torch, run_command, run_naively
from benchmarks._rows import row
from fedstrata.data import store

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
STRATIFY = FASHION | {"method.name": "stratify-batch", "data.clients": 10, "train.batch_size": 64}
STATEFUL = ("scaffold", "feddyn")
FORWARD_AND_BACKWARD, MORE = 3, 2  # passes of a step, a backward one as two; how many more a step of MOON has
METHODS = "fedavg,fedprox,scaffold,feddyn,moon,fednova,fedadam,fedyogi,fedlc,fedrs,fedexp,fedpbs,flips,power-of-choice"
COMPARED = 40  # rounds of each cell


def measure(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Give ratios of whole commands."""
    if not torch.cuda.is_available() or "fashion-mnist" not in store.names():
        print("torch sees no GPU, or fashion-mnist is not in the data folder: nothing is measured", file=sys.stderr)
        yield row("fashion-mnist, CNN tf32: the naive loop", None, "x ours", at_least=8.0)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield from _commands(Path(folder), 10 if quick else ROUNDS, 5 if quick else COMPARED)


def _commands(folder: Path, rounds: int, compared: int) -> Iterator[dict[str, Any]]:
    imports = min(import_torch(), import_torch())
    asked = FASHION | {"train.rounds": rounds}
    ours = run_command(folder / "fedavg", "run", asked | {"method.name": "fedavg"})
    naive = run_naively(folder / "naive.toml", asked)
    yield row("fashion-mnist, CNN tf32: a run of ours", ours.seconds, "s")
    yield row("fashion-mnist, CNN tf32: the naive loop", naive / ours.seconds, "x ours", at_least=8.0)
    yield row("fashion-mnist, CNN tf32: first round after the command", ours.first, "s", at_most=5.0)
    yield row("import torch, alone", imports, "s")
    for method in STATEFUL:
        other = run_command(folder / method, "run", asked | {"method.name": method})
        yield row(f"fashion-mnist, {method} against fedavg", other.seconds / ours.seconds, "x", at_most=1.4)
    moon = run_command(folder / "moon", "run", asked | {"method.name": "moon"}).seconds / ours.seconds
    yield row("fashion-mnist, moon against fedavg", moon, "x")
    as_much = moon / (1 + MORE / FORWARD_AND_BACKWARD)
    yield row("fashion-mnist, moon against fedavg with as many passes", as_much, "x", at_most=1.4)
    cells = run_command(folder / "cells", "compare", asked | {"train.rounds": compared}, METHODS)
    yield row(f"fashion-mnist, 14 methods x 2 seeds x {compared} rounds", cells.seconds, "s", at_most=180.0)
    asked = STRATIFY | {"train.rounds": rounds}
    ours, plain = run_command(folder / "stratify", "run", asked), run_naively(folder / "stratify.toml", asked)
    name = f"fashion-mnist, Stratify batch, {rounds} epochs: a plain loop over pooled batches"
    yield row(name, plain / ours.seconds, "x ours", at_least=4.0)

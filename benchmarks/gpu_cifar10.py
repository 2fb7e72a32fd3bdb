"""On a GPU, as a user runs it: ResNet-18 with group norm on CIFAR-10 in bf16, images cropped and flipped.

A whole command against the naive loop, as in `gpu.py`. The step is compiled, which takes longest the first time; what
was compiled then lies on the disk, and the runs that follow begin with it. Both are told: what a first command of two
rounds takes, and how a run that follows compares.

The data set is read from the data folder: `fedstrata data fetch cifar10`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks._command import run_command, run_naively
from benchmarks._rows import row
from fedstrata.data import store
from fedstrata.engines.local.compiled_step import FOLDER

ROUNDS = 50
CIFAR = {
    "data.name": "cifar10",
    "data.clients": 20,
    "data.partition.kind": "dirichlet-class",
    "data.partition.alpha": 0.5,
    "train.clients_per_round": 10,
    "train.epochs": 2,
    "train.batch_size": 64,
    "train.lr": 0.02,
    "train.augment.crop": 4,
    "train.augment.flip": True,
    "model.name": "resnet18",
    "model.norm": "gn",
    "engine.precision": "bf16",
}
FIRST = {"train.rounds": 2, "engine.compile": True}


def measure(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Give ratios of whole commands."""
    if not torch.cuda.is_available() or "cifar10" not in store.names():
        print("torch sees no GPU, or cifar10 is not in the data folder: nothing is measured", file=sys.stderr)
        yield row("ResNet-18 GN bf16, crop and flip: the naive loop", None, "x ours", at_least=4.0)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = f"{folder}/compiled"  # where nothing was compiled before
        yield from _commands(Path(folder), 5 if quick else ROUNDS)


def _commands(folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    asked = CIFAR | {"train.rounds": rounds}
    first = run_command(folder / "first", "run", asked | FIRST)
    yield row("ResNet-18 GN bf16, crop and flip: a first command, which compiles: 2 rounds", first.seconds, "s")
    ours, naive = run_command(folder / "ours", "run", asked), run_naively(folder / "naive.toml", asked)
    yield row(f"ResNet-18 GN bf16, crop and flip: a run of ours that follows, {rounds} rounds", ours.seconds, "s")
    yield row("ResNet-18 GN bf16, crop and flip: its first round after the command", ours.first, "s")
    yield row("ResNet-18 GN bf16, crop and flip: the naive loop", naive / ours.seconds, "x ours", at_least=4.0)

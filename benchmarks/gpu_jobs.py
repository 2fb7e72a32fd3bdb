"""On a GPU: cells of a comparison one after another, and two or four at a time.

`fedstrata compare --jobs N` as a user types it, start included. Small networks leave a GPU idle where a large client is
the last of its round, and cells beside each other fill that; large ones fill it alone. The CNN is trained on
Fashion-MNIST (`fedstrata data fetch fashion-mnist`), ResNet-9 with batch norm on as many images of noise as CIFAR-10
has in a fifth. Cells are side by side only where NVIDIA's Multi-Process Service is installed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._command import run_command
from benchmarks._rows import row
from benchmarks.gpu import FASHION
from fedstrata.data import store
from fedstrata.runs.compare.gpu_sharing import can_share

JOBS = (1, 2, 4)
METHODS, SEEDS = "fedavg,fedprox,fednova,flips", 2  # which is how many seeds `run_command` asks for
NOISE = {
    "data.name": "own",
    "data.clients": 10,
    "data.partition.kind": "iid",
    "train.clients_per_round": "all",
    "train.batch_size": 64,
    "train.lr": 0.01,
    "model.name": "resnet9",
    "model.norm": "bn",
    "engine.precision": "tf32",
}
SAMPLES = 10_000


def measure(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Give seconds of a cell, and how many times as fast several at a time are."""
    if not torch.cuda.is_available() or not can_share():
        print("torch sees no GPU, or cells cannot share it: nothing is measured", file=sys.stderr)
        yield row("ResNet-9 BN tf32, 4 at a time", None, "x one")
        return
    with tempfile.TemporaryDirectory() as folder:
        path, rng = Path(folder) / "noise.npz", np.random.default_rng(0)
        x = rng.integers(0, 256, (SAMPLES, 3, 32, 32), dtype=np.uint8)
        np.savez(path, x=x, y=np.arange(SAMPLES) % 10)
        workloads = {"ResNet-9 BN tf32": NOISE | {"data.path": str(path), "train.rounds": 2 if quick else 40}}
        if "fashion-mnist" in store.names():
            workloads["CNN tf32, fashion-mnist"] = FASHION | {"train.rounds": 2 if quick else 40}
        for name, asked in workloads.items():
            yield from _workload(Path(folder) / name, name, asked)


def _workload(folder: Path, name: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cells, alone = SEEDS * len(METHODS.split(",")), 0.0
    for jobs in JOBS:
        seconds = run_command(folder / str(jobs), "compare", asked, METHODS, jobs).seconds / cells
        yield row(f"{name}, {jobs} at a time: a cell", seconds, "s")
        alone = alone or seconds
        if jobs > 1:
            yield row(f"{name}, {jobs} at a time", alone / seconds, "x one")

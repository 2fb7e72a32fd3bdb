"""What the papers' networks cost on this machine: seconds a round of a few of their runs, on noise of their shapes.

`fedstrata reproduce list` reckons from these figures how long a table takes that nobody has reproduced (`_speeds.py`).
Clients of a round train side by side, as the engine likes best; single samples and pooled batches follow Stratify's
schedule. A round's seconds are the median of the rounds after the first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import fedstrata
from benchmarks._rows import row
from fedstrata.client.products import products_a_sample
from fedstrata.core import registry
from fedstrata.reproduce.work import BACKWARD, Work

CLIENTS, CLASSES, ROUNDS = 2, 10, 4


@dataclass(frozen=True)
class Workload:
    """A network of a paper as its clients train it; everybody takes part."""

    name: str
    model: str
    shape: tuple[int, ...]
    samples: int  # of all clients
    batch_size: int
    settings: Mapping[str, Any]

    @property
    def work(self) -> Work:
        """What a round computes."""
        with torch.device("meta"):
            module = registry.build("models", self.model, {}, "model").build(self.shape, CLASSES)
            products = products_a_sample(module, torch.empty(2, *self.shape))
        steps = self.samples / self.batch_size
        return Work((1 + BACKWARD) * products * self.samples, steps, steps / CLIENTS, 1)


WORKLOADS = (
    Workload("LeNet-5, batches of 32", "lenet5", (1, 28, 28), 3200, 32, {}),
    Workload("FedBSS' CNN, batches of 64", "cnn-fedbss", (1, 28, 28), 1280, 64, {}),
    Workload("HiCS-FL's CNN for CIFAR-10, batches of 64", "cnn-hics-cifar10", (3, 32, 32), 1280, 64, {}),
    Workload("a CNN on signals, batches of 64", "har-cnn1d", (9, 128), 1280, 64, {}),
    Workload("Stratify's CNN, clients train on single samples", "cnn-stratify", (3, 32, 32), 400, 1, {}),
    Workload(
        "Stratify's CNN, a schedule of single samples",
        "cnn-stratify",
        (3, 32, 32),
        400,
        1,
        {"method.name": "stratify-single"},
    ),
    Workload(
        "ResNet-9, a schedule of batches of 64", "resnet9", (3, 32, 32), 128, 64, {"method.name": "stratify-batch"}
    ),
    Workload("ResNet-18, batches of 64", "resnet18", (3, 32, 32), 128, 64, {}),
)


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return seconds a round; quickly, of the first workload alone."""
    return [row(one.name, _seconds(one), "s") for one in WORKLOADS[: 1 if quick else None]]


def _seconds(one: Workload) -> float:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((one.samples, *one.shape), dtype=np.float32), np.arange(one.samples) % CLASSES
    tests = x[:CLASSES], y[:CLASSES]
    federation = fedstrata.Federation.from_arrays(x, y, CLIENTS, partition=fedstrata.Iid(), test=tests)
    asked = {
        "model.name": one.model,
        "train.rounds": ROUNDS,
        "train.epochs": 1,
        "train.batch_size": one.batch_size,
        "train.clients_per_round": "all",
        "train.lr": 0.001,
        "train.evaluate.every": ROUNDS,
        "engine.precision": "tf32",
        **one.settings,
    }
    with tempfile.TemporaryDirectory() as folder:
        run = fedstrata.train(federation=federation, overrides=asked, out=Path(folder) / "run")
        walls = [event["wall"]["seconds"] for event in run.events() if event["event"] == "round"]
    return median(after - before for before, after in pairwise(walls))

"""The work that every simulator does: described by JSON, on samples from a file, told in seconds.

A peer is a module with a function `run(job, watch)`: rounds of plain FedAvg without evaluation, and a lap at the end
of each. It runs in an environment of its own, so there is nothing here but numpy and torch.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

CLASSES, LR = 10, 0.01


@dataclass(frozen=True)
class Job:
    """A workload: client k holds the k-th `samples` rows of the file, and trains on them once a round."""

    model: str
    clients: int
    per_round: int
    samples: int
    batch: int
    rounds: int = 0
    data: str = ""  # a .npz file
    threads: int = 1  # of torch in a process that trains clients
    cores: int = 1
    nodes: int = 1  # of a cluster
    began: float = 0.0  # time.time() when the process was started

    @property
    def steps(self) -> int:
        """Local steps of a round."""
        return self.per_round * -(-self.samples // self.batch)

    @classmethod
    def read(cls, text: str) -> Job:
        """Undo `dump`."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """Return the job as text."""
        return json.dumps(asdict(self))

    def arrays(self) -> tuple[Tensor, Tensor]:
        """Return all samples and labels, read once a process."""
        return _arrays(self.data)

    def rows(self, client: int) -> slice:
        """Say which of them are a client's own."""
        return slice(client * self.samples, (client + 1) * self.samples)


@cache
def _arrays(path: str) -> tuple[Tensor, Tensor]:
    with np.load(path) as file:
        return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])


@dataclass
class Stopwatch:
    """Takes the time of rounds, that of the first one from when the process was started."""

    job: Job
    ends: list[float] = field(default_factory=list)
    steps: int = 0  # local steps taken, to see that everybody did the same work

    def lap(self) -> None:
        """End a round."""
        self.ends.append(time.time())

    def tell(self) -> None:
        """Print the seconds of all rounds as the last line."""
        if len(self.ends) != self.job.rounds or self.steps != self.job.steps * self.job.rounds:
            sys.exit(f"made {len(self.ends)} rounds of {self.job.rounds} and took {self.steps} local steps")
        print("\n" + json.dumps(np.diff([self.job.began, *self.ends]).tolist()), flush=True)


def network(model: str) -> nn.Sequential:
    """Build a network."""
    if model == "mlp":
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    if model == "lenet5":
        tail = nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)
        return nn.Sequential(*_convolution(1, 6, 2), *_convolution(6, 16, 0), nn.Flatten(), *tail)
    tail = nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    return nn.Sequential(*_convolution(1, 32, 2), *_convolution(32, 64, 2), nn.Flatten(), *tail)


def _convolution(before: int, after: int, padding: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(before, after, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)

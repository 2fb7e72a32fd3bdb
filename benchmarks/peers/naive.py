"""FedAvg as research code writes it: a deep copy of the model and a DataLoader for every client, one after another."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.job import LR, Job, Stopwatch, network


def run(job: Job, watch: Stopwatch) -> None:
    """Run the rounds."""
    torch.set_num_threads(job.threads)
    model, rng, (x, y) = network(job.model), np.random.default_rng(0), job.arrays()
    for _ in range(job.rounds):
        models: list[dict[str, Tensor]] = []
        for client in rng.choice(job.clients, job.per_round, replace=False).tolist():
            local, own = deepcopy(model), job.rows(client)
            watch.steps += train(local, x[own], y[own], job.batch)
            models.append(local.state_dict())
        share = 1 / len(models)  # all have the same number of samples
        model.load_state_dict({name: sum(share * each[name] for each in models) for name in models[0]})
        watch.lap()


def train(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> int:
    """Pass once over a client's samples; give the number of steps."""
    optimizer, steps = torch.optim.SGD(model.parameters(), lr=LR), 0
    for some, labels in DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True):
        optimizer.zero_grad()
        cross_entropy(model(some), labels).backward()
        optimizer.step()
        steps += 1
    return steps

"""FedAvg on a GPU as research code writes it, from start to end: `python -m benchmarks._naive_gpu EXPERIMENT`.

A deep copy of the model and a DataLoader for every client, one client after another; samples lie on the device, and
whole batches are normalised and augmented there. The test set is evaluated and the model saved after every round.
It runs the experiment of ours: the same samples at the same clients, the same network and rates. Where the method is
Stratify, whose batches are drawn from all clients, it is a plain loop over batches of the pooled samples. Prints the
seconds before the first round, and those of every round.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import time
from pathlib import Path

BEGAN = time.perf_counter()

import numpy as np  # noqa: E402  what a command imports is part of what it takes
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy, pad  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from fedstrata.config.build import build_federation, build_plan  # noqa: E402
from fedstrata.config.experiment import Experiment  # noqa: E402
from fedstrata.core.inputs import Inputs  # noqa: E402


def main(path: str, rounds: int) -> None:
    """Run some rounds of an experiment."""
    experiment = Experiment.of(path)
    federation = build_federation(experiment)
    plan, train = build_plan(experiment, federation), experiment.train
    model, rng = plan.local.build().cuda(), np.random.default_rng(0)
    x, y = federation.train.x.cuda(), federation.train.y.cuda()
    clients = [TensorDataset(x[own], y[own]) for own in (federation.train_split[i] for i in range(len(federation)))]
    test, inputs, device = federation.test, plan.local.inputs, torch.device("cuda")
    test_x, test_y = test.x.cuda(), test.y.cuda()
    stratify = experiment.method.name.startswith("stratify")
    pooled = torch.optim.SGD(model.parameters(), lr=train.lr, momentum=0.9) if stratify else None
    began, seconds = time.perf_counter() - BEGAN, []
    for _ in range(rounds):
        start, trained = time.perf_counter(), list[tuple[int, dict[str, Tensor]]]()
        if pooled is not None:
            for own in torch.randperm(len(y), device=device).split(train.batch_size):
                pooled.zero_grad()
                cross_entropy(model(augmented(normalised(x[own], inputs, device), inputs)), y[own]).backward()
                pooled.step()
            trained.append((1, model.state_dict()))
        for client in rng.choice(len(clients), 0 if pooled else int(train.clients_per_round), replace=False).tolist():
            local = copy.deepcopy(model).train()
            optimizer = torch.optim.SGD(local.parameters(), lr=train.lr)
            for _ in range(train.epochs):
                for some, labels in DataLoader(clients[client], batch_size=train.batch_size, shuffle=True):
                    optimizer.zero_grad()
                    cross_entropy(local(augmented(normalised(some, inputs, device), inputs)), labels).backward()
                    optimizer.step()
            trained.append((len(clients[client]), local.state_dict()))
        total = sum(size for size, _ in trained)
        model.load_state_dict({k: sum(size / total * w[k] for size, w in trained) for k in trained[0][1]})
        evaluate(model, test_x, test_y, inputs, device)
        model.train()
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), Path(folder) / "model.pt")
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"began": began, "rounds": seconds}))


def normalised(x: Tensor, inputs: Inputs, device: torch.device) -> Tensor:
    """Scale and normalise a batch."""
    mean, std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (inputs.mean, inputs.std))
    return (x.float() / inputs.scale - mean) / std


def augmented(x: Tensor, inputs: Inputs) -> Tensor:
    """Shift and flip the images of a batch, each by chance."""
    if inputs.crop:
        count, _, height, width = x.shape
        dy, dx = torch.randint(0, 2 * inputs.crop + 1, (2, count), device=x.device)
        rows = dy.view(-1, 1) + torch.arange(height, device=x.device)
        columns = dx.view(-1, 1) + torch.arange(width, device=x.device)
        image = torch.arange(count, device=x.device).view(-1, 1, 1)
        x = pad(x, (inputs.crop,) * 4)[image, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)
    if inputs.flip:
        x = torch.where(torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5, x.flip(3), x)
    return x


def evaluate(model: nn.Module, x: Tensor, y: Tensor, inputs: Inputs, device: torch.device) -> float:
    """Return the accuracy."""
    model.eval()
    with torch.no_grad():
        parts = zip(torch.split(x, 1024), torch.split(y, 1024), strict=True)
        hits = [(model(normalised(some, inputs, device)).argmax(1) == labels).sum().item() for some, labels in parts]
    return sum(hits) / len(y)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

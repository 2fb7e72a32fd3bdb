"""One client, trained by the trainer and by hand."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from fedstrata.client.trainer import Trainer
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Task
from fedstrata.data.federation import Federation
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment

close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def build_federation(sizes=(9, 3, 17), shape=(4,), ones=False):
    rng, stops = np.random.default_rng(1), np.cumsum(sizes)
    rows = [np.arange(stop - n, stop) for stop, n in zip(stops, sizes, strict=True)]
    x = np.ones((stops[-1], *shape)) if ones else rng.normal(size=(stops[-1], *shape))
    y = np.arange(stops[-1]) % 3
    return Federation.from_arrays(x.astype(np.float32), y, rows, test=(x[:3].astype(np.float32), y[:3]))


def session_of(module, federation=None, **overrides):
    federation = federation or build_federation()
    asked = {"train.epochs": 2, "train.batch_size": 4, "train.lr": 0.1, "engine.precision": "fp64"}
    overrides = {key.replace("__", "."): value for key, value in overrides.items()}
    return build_session(
        describe_experiment(None, None, {**asked, **overrides}, federation, module), federation, module
    )


def trainer_of(work, pad=False):
    data = work.federation.train
    return Trainer(work.plan.local, data.x, data.y, int(work.federation.train_split.sizes.max()), pad=pad)


def context(trainer, work, client=0, round=0):
    down = work.initial_state().model.wire()
    return trainer.run_task(work.federation.client(client), Task(client, round, 0, down=down), {})[0]


def batches_of(work, client, round=0):
    """Return the batches of a client update, from the same streams."""
    local, rows = work.plan.local, work.federation.train_split[client]
    for epoch in range(local.epochs):
        order = rows[local.streams(f"epoch-{epoch}", round=round, client=client).permutation(len(rows))]
        yield from (order[i : i + local.batch_size] for i in range(0, len(rows), local.batch_size))


def textbook(work, client, optimizer, round=0, skip_single=False):
    """Train as any tutorial does; give the module, and the mean loss over the samples trained on."""
    module, data, losses = work.plan.local.build().double(), work.federation.train, []
    steps = optimizer([p for p in module.parameters() if p.requires_grad])
    for rows in batches_of(work, client, round):
        if skip_single and len(rows) == 1:
            continue
        module.train()
        steps.zero_grad()
        each = cross_entropy(module(data.x[rows].double()), data.y[rows], reduction="none")
        each.mean().backward()
        steps.step()
        losses += each.tolist()
    return module, np.mean(losses)


def trained(work, report):
    """Return the client's model by name."""
    start = work.initial_state().model
    moved = start.params + report.aggregated["update"]
    return work.plan.space.named(FlatModel(moved, start.buffers + report.aggregated.get("buffers", 0)))


def normed():
    """Return a network with a norm layer.

    A bias before it would have no gradient but rounding, which Adam scales up.
    """
    torch.manual_seed(3)
    first = nn.Linear(4, 6, bias=False)
    return nn.Sequential(OrderedDict(fc=first, norm=nn.BatchNorm1d(6), act=nn.ReLU(), head=nn.Linear(6, 3)))


def dropping(p=0.5, width=4):
    torch.manual_seed(4)
    return nn.Sequential(OrderedDict(drop=nn.Dropout(p), head=nn.Linear(width, 3)))


class Functional(nn.Module):
    """Draws from torch's global generator."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        self.last = functional.dropout(x, 0.5, training=self.training)
        return self.head(self.last)


def looking(trainer, work):
    return trainer.make_context(work.federation.client(0), Task(0, 0, 0, down=work.initial_state().model.wire()), {})

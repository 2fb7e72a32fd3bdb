"""Small worlds of clients that compute together, and the same by plain PyTorch on everybody's samples."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout

from fedstrata.client.network import key_dropout
from fedstrata.client.trainer import Trainer
from fedstrata.core.counter_rng import Clock
from fedstrata.core.inputs import Inputs
from fedstrata.core.machine.threads import one_thread
from fedstrata.data.federation import Federation
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round
from fedstrata.testing.tiny import in_process

close = partial(torch.testing.assert_close, rtol=0, atol=1e-9)
near = partial(torch.testing.assert_close, rtol=0, atol=1e-6)  # for numbers that are given with six digits
tensor = partial(torch.tensor, dtype=torch.float64)
NUMBER = 8  # bytes
both_methods = pytest.mark.parametrize("method", ["stratify-single", "stratify-batch"])


# ---- small worlds ----------------------------------------------------------------------------------------------------


def dense(*norms, act=nn.ReLU):
    """Return a network with norms; a bias before one would have no gradient but rounding, which Adam scales up."""
    torch.manual_seed(3)
    layers, width = OrderedDict(), 4
    for i, norm in enumerate(norms):
        layers |= {f"fc{i}": nn.Linear(width, 6, bias=False), f"norm{i}": norm, f"act{i}": act()}
        width = 6
    return nn.Sequential(layers | {"head": nn.Linear(width, 3)})


def frozen():
    module = dense(nn.BatchNorm1d(6), nn.BatchNorm1d(6))
    module.fc0.requires_grad_(False)
    return module


def conv(norm):
    torch.manual_seed(4)
    body = OrderedDict(conv=nn.Conv2d(2, 4, 3, padding=1, bias=False), norm=norm, act=nn.ReLU(), drop=nn.Dropout2d(0.2))
    tail = {"pool": nn.MaxPool2d(2), "flat": nn.Flatten(), "gone": nn.Dropout(0.3), "head": nn.Linear(4 * 3 * 3, 3)}
    return nn.Sequential(body | tail)


class Shared(nn.Module):
    """One norm in two places; where asked for, dropout from torch's own generator."""

    def __init__(self, drop=0.0):
        super().__init__()
        torch.manual_seed(5)
        self.fc, self.norm, self.head = nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.drop = drop

    def forward(self, x):
        return self.head(dropout(self.norm(self.fc(self.norm(x)).relu()), self.drop, self.training))


def build_federation(sizes=(9, 3, 17, 1), pixels=False, scale=1.0):
    """Return clients of some sizes; all labels are equally frequent."""
    rng, stops = np.random.default_rng(1), np.cumsum(sizes)
    rows = [np.arange(stop - n, stop) for stop, n in zip(stops, sizes, strict=True)]
    x = scale * rng.normal(size=(stops[-1], 4)).astype(np.float32)
    x = rng.integers(0, 256, (stops[-1], 2, 6, 6)).astype(np.uint8) if pixels else x
    y, inputs = np.arange(stops[-1]) % 3, Inputs(255.0, (0.4, 0.5), (0.2, 0.3)) if pixels else Inputs()
    return Federation.from_arrays(x, y, rows, test=(x[:3], y[:3]), inputs=inputs)


def session_of(module, method, federation=None, **overrides):
    federation = federation or build_federation()
    asked = {"method.name": method, "train.batch_size": 4, "train.lr": 0.1, "train.rounds": 2, "train.epochs": 2}
    asked |= {"train.optimizer": {"kind": "sgd", "momentum": 0.0}, "engine.precision": "fp64"}
    asked |= {key.replace("__", "."): value for key, value in overrides.items()}
    return build_session(describe_experiment(None, None, asked, federation, module), federation, module)


class Finished(NamedTuple):
    state: object
    outcomes: list
    notes: list

    def events(self, kind):
        return [fields for event, fields in self.notes if event == kind]


def run_of(work, engine=in_process, rounds=2):
    state, at, outcomes, notes = work.initial_state(), engine(work), [], []
    client_info = work.client_info if at.can_fuse else work.client_info.without_ground_truth()
    for round in range(rounds):
        view = work.plan.view(client_info, round, lambda kind, **fields: notes.append((kind, fields)))
        with one_thread():
            outcomes += run_round(work.plan, state, view, at)
        state.round += 1
    return Finished(state, outcomes, notes)


@contextmanager
def recorded():
    """Record the rows of every batch that one machine trains on, with what their random bits are made of."""
    seen, original = [], Trainer.train_fused

    def spy(trainer, task, batches):
        keys = np.zeros_like(batches.rows) if batches.keys is None else batches.keys
        if len(batches):
            seen.extend(zip(*(np.split(each, batches.starts[1:-1]) for each in (batches.rows, keys)), strict=True))
        return original(trainer, task, batches)

    with patch.object(Trainer, "train_fused", spy):
        yield seen


def central(work, seen, optimizer, rates):
    """Train as any tutorial does, on the same samples in the same order."""
    local, data = work.plan.local, work.federation.train
    module, clock = local.build().double().train(), Clock(torch.zeros(1, dtype=torch.int64))
    key_dropout(module, clock)
    steps = optimizer([p for p in module.parameters() if p.requires_grad], lr=0.1)
    for (rows, keys), rate in zip(seen, rates, strict=True):
        clock.keys, clock.uses = torch.from_numpy(keys), 0
        x = local.inputs.augment(local.inputs(data.x[rows], torch.float64), clock)
        steps.param_groups[0]["lr"] = rate
        steps.zero_grad()
        cross_entropy(module(x), data.y[rows]).backward()
        steps.step()
    return module.state_dict()


def same_model(work, state, by_hand):
    for name, own in work.plan.space.named(state.model).items():
        close(own, by_hand[name], msg=lambda said, name=name: f"{name}: {said}")


def one_cycle(step, steps):
    """Climb from 4 % to all of the rate at 30 % of the run, then fall to 1 %."""
    share = step / (steps - 1)
    return 0.1 * (0.04 + 0.96 * share / 0.3 if share <= 0.3 else 1 - 0.99 * (share - 0.3) / 0.7)


PLAIN, SGD, ADAM = "plain", "momentum", "adam"
OPTIMIZERS = {  # ours, torch's, and what travels where memory does: so many numbers a weight, and beside
    PLAIN: (
        {"kind": "sgd", "momentum": 0.0, "weight_decay": 0.01},
        partial(torch.optim.SGD, weight_decay=0.01),
        (1, 0),
    ),
    SGD: (
        {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.01, "state": "carried"},
        partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01),
        (2, 0),
    ),
    ADAM: (
        {"kind": "adam", "beta1": 0.8, "eps": 1e-30, "state": "carried"},
        partial(torch.optim.Adam, betas=(0.8, 0.999), eps=1e-30),
        (3, 1),
    ),
}

"""Clients whose steps can be computed on paper.

`Given` replaces a client's gradient by `curve * (w - target) + slope`, so that a client update of the real worker
follows a quadratic. The model has two weights, [P = 2].
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from fedstrata.client.trainer import Trainer
from fedstrata.core.client_parts import Correction
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Slot
from fedstrata.data.federation import Federation
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.testing.tiny import in_process, run_rounds


@dataclass(frozen=True)
class Given(Correction):
    """Replaces the gradient by that of a quadratic of the client's own."""

    targets: tuple[tuple[float, float], ...] = ()
    curve: float = 1.0
    slope: tuple[float, float] = (0.0, 0.0)

    def declare_slots(self, space):
        return {"target": Slot((space.P,)), "slope": Slot((space.P,))}

    def fill(self, own, buf, context):
        own["target"].copy_(torch.tensor(self.targets[context.client.id] if self.targets else (0.0, 0.0)))
        own["slope"].copy_(torch.tensor(self.slope, dtype=torch.float64))

    def edit_gradient(self, own, buf, rate):
        buf.g.copy_(self.curve * (buf.w - own["target"]) + own["slope"])


def given_work(sizes, overrides):
    """Return a run of one local step a client, all clients in every round, unless told otherwise."""
    stops = np.cumsum(sizes)
    rows = [np.arange(stop - n, stop) for stop, n in zip(stops, sizes, strict=True)]
    y = np.arange(stops[-1]) % 2
    federation = Federation.from_arrays(np.ones((len(y), 1)), y, rows, test=(np.ones((2, 1)), np.arange(2)))
    module = nn.Sequential(OrderedDict(head=nn.Linear(1, 2, bias=False)))
    usual = {"engine.precision": "fp64", "train.epochs": 1, "train.clients_per_round": "all", "train.lr": 1.0}
    return build_session(
        describe_experiment(None, None, {**usual, **overrides}, federation, module), federation, module
    )


def start(work, *weights):
    return replace(work.initial_state(), model=FlatModel(f64(*weights), torch.zeros(0, dtype=torch.float64)))


def run_from(work, state, engine=None):
    """Run one more round from a state of one's own."""
    open_tensors = SimpleNamespace(plan=work.plan, client_info=work.client_info, initial_state=lambda: state)
    return run_rounds(open_tensors, 1, lambda _: engine or in_process(work))[1]


def weights_after_steps(monkeypatch):
    """Return a list to which every local step of this process adds the first weight that it ends with."""
    step, seen = Trainer.step, []
    monkeypatch.setattr(
        Trainer, "step", lambda trainer, *size: (step(trainer, *size), seen.append(trainer.buf.w[0].item()))
    )
    return seen


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)

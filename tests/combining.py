"""Reports and runs for tests of combiners.

`Told` stands for the reports of a step, whatever they say. `Moves` lets every client of a real run send the update we
choose: one step of length 1 along it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from quadratic import f64, given_work
from torch import nn

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.client_parts import Correction
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Report, Slot, weighted_sum
from fedstrata.core.rng import Streams
from fedstrata.core.steps import View
from fedstrata.engines.local.engine import InProcessPool, LocalEngine
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round
from fedstrata.testing import tiny_federation

close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


class Told:
    """The reports of a step: an update a client, and what it says beside."""

    def __init__(self, updates, clients=None, weights=None, chances=None, others=None, **numbers):
        self._whole = {}
        for i, update in enumerate(updates):
            report = Report(i if clients is None else clients[i], 1, 1, update_norm=float(update.norm()))
            aggregated = {"update": update, **{name: each[i] for name, each in (others or {}).items()}}
            told = {name: each[i] for name, each in numbers.items()}
            self._whole[report.client] = replace(report, aggregated=aggregated, **told)
        self.reports = [report.open() for report in self._whole.values()]
        self.weights = np.ones(len(updates)) if weights is None else np.array(weights, dtype=float)
        self.chances = np.full(len(updates), np.nan) if chances is None else np.array(chances)

    def sum(self, weights):
        return weighted_sum(self._whole, dict(zip(self._whole, map(float, weights), strict=True)))

    def each(self):
        return list(self._whole.values())


def weighed(combiner, **told):
    """Return the weights that a combiner asks for: client k sends the k-th unit vector."""
    n = max(map(len, told.values()))
    view = view_of([1] * n)
    return combiner.combine(None, view, model_of(), Told(list(torch.eye(n).double()), **told)).total["update"]


def variances(*values):
    return [{"gradient_variance": v} for v in values]


def view_of(sizes, k=1, round=0, note=lambda *_, **__: None, P=2, Q=0, **known):
    """Return what parts at the server see of clients of these sizes."""
    client_info = ClientInfo(
        len(sizes), 2, np.flatnonzero(sizes), np.arange(len(sizes)), {"sizes": np.array(sizes)}, **known
    )
    space = SimpleNamespace(P=P, Q=Q)
    return View(round, 10, k, client_info.holders, client_info, space, partial(Streams(0), round=round), note)


def model_of(*weights):
    return FlatModel(f64(*weights), f64())


@dataclass(frozen=True)
class Moves(Correction):
    """Replaces the gradient, so that each step of length 1 moves a client by its own vector."""

    by: tuple[tuple[float, ...], ...]

    def declare_slots(self, space):
        return {"by": Slot((space.P,))}

    def fill(self, own, buf, context):
        own["by"].copy_(torch.tensor(self.by[context.client.id], dtype=torch.float64))

    def edit_gradient(self, own, buf, rate):
        buf.g.copy_(-own["by"])


def moving_work(by, overrides, sizes=None):
    """Return a run of two weights in which every client moves as told, once a batch."""
    moves = {"method.corrections": [Moves(tuple(map(tuple, by)))], "train.rounds": 4}
    return given_work(sizes or [2] * len(by), {**moves, **overrides})


class Watched(LocalEngine):
    """The local engine, which remembers the weights that it was asked for."""

    def __init__(self, pool):
        super().__init__(pool)
        self.asked = []

    def collect(self, weights):
        self.asked.append(dict(weights))
        return super().collect(weights)


def run_of(work, rounds=1, weights=None):
    """Run rounds from given weights; the state, the outcomes, the events and the weights of every step."""
    notes: list[dict] = []

    def note(kind, **fields):
        notes.append({"event": kind, **fields})

    state, engine, outcomes = work.initial_state(note), Watched(InProcessPool(work.plan.local, work.federation)), []
    if weights is not None:
        state = replace(state, model=FlatModel(f64(*weights), state.model.buffers))
    for round in range(rounds):
        outcomes.append(run_round(work.plan, state, work.plan.view(work.client_info, round, note), engine))
        state.round += 1
    return SimpleNamespace(state=state, rounds=outcomes, notes=notes, weights=engine.asked, work=work)


def normed_work(overrides, seed=0):
    """Return a run of a network with norm statistics."""
    torch.manual_seed(0)
    layers = OrderedDict(fc=nn.Linear(4, 5), norm=nn.BatchNorm1d(5), relu=nn.ReLU(), head=nn.Linear(5, 3))
    federation, module = tiny_federation(seed=seed), nn.Sequential(layers)
    asked = {"train.batch_size": 4, "train.epochs": 1, "train.clients_per_round": "all", "engine.precision": "fp64"}
    return build_session(
        describe_experiment(None, None, {**asked, **overrides}, federation, module), federation, module
    )

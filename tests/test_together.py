"""Clients that compute together: norms that meet, global batches, models that travel; in double precision.

By messages, at sites behind bytes and as one client update of one machine they must compute what plain PyTorch computes
on everybody's samples. Numbers are the specification's.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from threading import Thread
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout

from fedstrata import train
from fedstrata.client.all_reduce import run_in_lockstep
from fedstrata.client.network import key_dropout
from fedstrata.client.trainer import Trainer
from fedstrata.core.batch_norm import Norms
from fedstrata.core.client_parts import Gradient, LearningRate
from fedstrata.core.counter_rng import Clock
from fedstrata.core.errors import RequestError
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.inputs import Inputs
from fedstrata.core.messages import Report, Task, weighted_sum
from fedstrata.core.threads import one_thread
from fedstrata.data.federation import Federation
from fedstrata.methods.combiners.size import SizeWeighted
from fedstrata.methods.combiners.uniform import Uniform
from fedstrata.methods.lr_schedules import Constant, Cosine, OneCycle, StepDecay
from fedstrata.methods.optimizers.at_server import AtServer, OptimizerMemory
from fedstrata.methods.optimizers.sgd import Sgd
from fedstrata.methods.schedules.take import Take
from fedstrata.runs.session import Session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import play_round
from fedstrata.testing import WireEngine, tiny_federation
from fedstrata.testing.tiny import in_process, same

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
    y, inputs = np.arange(stops[-1]) % 3, Inputs(255.0, (0.4, 0.5), (0.2, 0.3)) if pixels else None
    return Federation.from_arrays(x, y, rows, test=(x[:3], y[:3]), inputs=inputs)


def session_of(module, method, federation=None, **overrides):
    federation = federation or build_federation()
    asked = {"method.name": method, "train.batch_size": 4, "train.lr": 0.1, "train.rounds": 2, "train.epochs": 2}
    asked |= {"train.optimizer": {"kind": "sgd", "momentum": 0.0}, "engine.precision": "fp64"}
    asked |= {key.replace("__", "."): value for key, value in overrides.items()}
    return Session(describe_experiment(None, None, asked, federation, module), federation, module)


class Played(NamedTuple):
    state: object
    outcomes: list
    notes: list

    def events(self, kind):
        return [fields for event, fields in self.notes if event == kind]


def played(work, engine=in_process, rounds=2):
    state, at, outcomes, notes = work.initial_state(), engine(work), [], []
    client_info = work.client_info if at.can_fuse else work.client_info.without_ground_truth()
    for round in range(rounds):
        view = work.plan.view(client_info, round, lambda kind, **fields: notes.append((kind, fields)))
        with one_thread():
            outcomes += play_round(work.plan, state, view, at)
        state.round += 1
    return Played(state, outcomes, notes)


@contextmanager
def recorded():
    """Record the rows of every batch that one machine trains on, with what their random bits are made of."""
    seen, original = [], Trainer.train_fused

    def spy(trainer, task, batches):
        keys = np.zeros_like(batches.rows) if batches.keys is None else batches.keys
        if len(batches):
            seen.extend(zip(*(np.split(each, batches.starts[1:-1]) for each in (batches.rows, keys)), strict=True))
        return original(trainer, task, batches)

    with patch.object(Trainer, "jointly", spy):
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


# ---- the exact gradient of a global batch ----------------------------------------------------------------------------


def test_sums_of_gradients_give_the_centralised_step_and_means_of_client_means_do_not():
    w, lr, reports = tensor([0.2, -0.1]), 0.5, {}
    x, y = tensor([[1, 0], [0, 1], [1, 1], [2, 1]]), tensor([1, 0, 1, 0])
    for client, (held, expected) in enumerate([([0, 1, 2], [-1.7, -1.0]), ([3], [0.6, 0.3])]):
        total = x[held].T @ (x[held] @ w - y[held])  # of half the squared error
        client_state = {"held": torch.tensor(held), "ahead": torch.zeros(2, 3)}
        done = Take().gradient(
            SimpleNamespace(client_state=client_state, gradient=lambda _, g=total: Gradient(g, torch.zeros(())))
        )
        close(-done.aggregated["update"] * done.samples, tensor(expected))
        reports[client] = Report(client, done.samples, aggregated=done.aggregated)

    def gradient(combiner):
        arrived = SimpleNamespace(reports=list(reports.values()), weights=np.ones(2))
        arrived.sum = lambda weights: weighted_sum(reports, dict(enumerate(weights)))
        sums = combiner.combine(None, None, None, arrived)
        view, model = (
            SimpleNamespace(round=0, part=(0, 1), space=ParameterSpace((), (), *[slice(0)] * 3)),
            FlatModel(w, w[:0]),
        )
        server, proposal = AtServer(Sgd(), LearningRate(lr, Constant(), 1)), FlatModel(w + sums.total["update"], w[:0])
        return (w - server.step(OptimizerMemory({}), view, model, proposal, sums).params) / lr

    close(gradient(SizeWeighted()), tensor([-0.275, -0.175]))
    close(gradient(SizeWeighted()), x.T @ (x @ w - y) / 4)
    near(gradient(Uniform()), tensor([0.016667, -0.016667]))


# ---- norms that meet -------------------------------------------------------------------------------------------------


class Met(NamedTuple):
    y: torch.Tensor
    dx: torch.Tensor
    layer: nn.Module
    said: dict  # what was exchanged: own values and the average
    numbers: tuple  # up and down


def meet(layer, xs, dys, by="samples", masks=None):
    """Let clients run and differentiate a norm together: what each of them has, and the statistics of all."""

    def context(x, dy, mask, all_reduce):
        own, said, exchange = copy.deepcopy(layer), {}, all_reduce.exchange
        norms = Norms.of(nn.Sequential(OrderedDict(norm=own)))

        def spy(what, values, count):
            average, total = exchange(what, values, count)
            said[what] = values, average
            return average, total

        all_reduce.exchange, norms.all_reduce, norms.mask = spy, all_reduce, mask
        x = x.clone().requires_grad_()
        y = own(x)
        y.backward(dy)
        return Met(y.detach(), x.grad, own, said, (all_reduce.up // NUMBER, all_reduce.down // NUMBER))

    masks = masks or [None] * len(xs)
    met, place = run_in_lockstep([partial(context, *one) for one in zip(xs, dys, masks, strict=True)], by)
    return met, place.statistics(ParameterSpace.of(nn.Sequential(OrderedDict(norm=layer)), "norm"))


def oracle(by):
    layer = nn.BatchNorm1d(1).double()
    nn.init.constant_(layer.weight, 2.0)
    nn.init.constant_(layer.bias, 0.5)
    return meet(layer, [tensor([[1], [2], [3]]), tensor([[10]])], [tensor([[0.1], [-0.2], [0.3]]), tensor([[0.4]])], by)


def test_synchronised_batch_norm_has_the_numbers_of_the_specification():
    (a, b), statistics = oracle("samples")
    for name, sums, average in (("mean", [6, 10], 4), ("var", [14, 36], 12.5)):
        assert [float(c.said[f"norm.{name}"][0]) for c in (a, b)] == sums
        assert [float(c.said[f"norm.{name}"][1]) for c in (a, b)] == [average, average]
    near(torch.cat([c.said["norm.back"][0] for c in (a, b)], 1), tensor([[0.4, 0.8], [-0.113137, 1.357644]]))
    near(torch.cat([a.y, b.y])[:, 0], tensor([-1.197056, -0.631370, -0.065685, 3.894111]))
    near(torch.cat([a.dx, b.dx])[:, 0], tensor([0.046386, -0.148210, 0.109743, -0.007919]))
    near(a.layer.weight.grad + b.layer.weight.grad, tensor([0.622254]))
    near(a.layer.bias.grad + b.layer.bias.grad, tensor([0.6]))
    close(statistics.view(-1), tensor([4, 12.5 * 4 / 3]))
    assert a.numbers == b.numbers == (2 + 1 + 2, 2 + 2)


def test_fedtan_takes_the_mean_of_client_means():
    (a, b), _ = oracle("clients")
    assert a.said["norm.mean"][1].item() == 6
    assert a.said["norm.var"][1].item() == pytest.approx(((25 + 16 + 9) / 3 + 16) / 2)
    assert a.numbers == b.numbers == (2 + 2, 2 + 2)


NORMS = {
    "columns": (lambda: nn.BatchNorm1d(3), ()),
    "sequences": (lambda: nn.BatchNorm1d(3), (5,)),
    "images": (lambda: nn.BatchNorm2d(3, momentum=0.3, eps=1e-3), (2, 4)),
    "no scale": (lambda: nn.BatchNorm2d(3, affine=False), (2, 4)),
    "no running statistics": (lambda: nn.BatchNorm1d(3, track_running_stats=False), ()),
    "frozen scale": (lambda: nn.BatchNorm1d(3).requires_grad_(False), ()),
}


def a_norm(case, counts=(3, 1, 4)):
    """Return a norm with scales that are not 1, and what some clients put in and get back."""
    torch.manual_seed(7)
    layer, tail = NORMS[case][0]().double(), NORMS[case][1]
    for parameter in layer.parameters():
        parameter.data.normal_()
    return layer, *([torch.randn(n, 3, *tail).double() + 2 for n in counts] for _ in range(2))


@pytest.mark.parametrize("case", NORMS)
def test_norms_that_meet_are_the_layer_on_everybodys_samples(case):
    layer, xs, dys = a_norm(case)
    met, statistics = meet(layer, xs, dys)
    whole, x = copy.deepcopy(layer), torch.cat(xs).requires_grad_()
    y = whole(x)
    y.backward(torch.cat(dys))
    close(torch.cat([c.y for c in met]), y.detach())
    close(torch.cat([c.dx for c in met]), x.grad)
    for name, parameter in whole.named_parameters():
        own = [dict(c.layer.named_parameters())[name].grad for c in met]
        assert own == [None] * 3 if case == "frozen scale" else close(sum(own), parameter.grad) is None
    assert (statistics is not None) == layer.track_running_stats
    if layer.track_running_stats:
        moved = layer.momentum * statistics.view(2, 3) + (1 - layer.momentum) * tensor([[0], [1]])
        close(moved, torch.stack([whole.running_mean, whole.running_var]))


def test_running_statistics_of_norms_that_meet_are_identical_everywhere():
    layer, xs, dys = a_norm("columns")
    met, _ = meet(layer, xs, dys)
    layer(torch.cat(xs))
    for client in met:
        close(client.layer.running_mean, layer.running_mean)
        close(client.layer.running_var, layer.running_var)


@pytest.mark.parametrize("case", ["columns", "images"])
def test_fedtans_backward_pass_is_the_derivative_of_its_forward_pass(case):
    layer, xs, dys = a_norm(case)
    met, _ = meet(layer, xs, dys, by="clients")
    dims, shape, own = [0, *range(2, xs[0].ndim)], (1, -1, *(1,) * (xs[0].ndim - 2)), [x.requires_grad_() for x in xs]
    mean = sum(x.mean(dims) for x in own).view(shape) / 3
    variance = sum(((x - mean) ** 2).mean(dims) for x in own).view(shape) / 3
    scale = layer.weight.view(shape) / (variance + layer.eps).sqrt()
    ys = [(x - mean) * scale + layer.bias.view(shape) for x in own]
    sum((y * dy).sum() for y, dy in zip(ys, dys, strict=True)).backward()
    for client, x, y in zip(met, own, ys, strict=True):
        close(client.y, y.detach())
        close(client.dx, x.grad)
    close(sum(c.layer.weight.grad for c in met), layer.weight.grad)


def test_fedtan_with_equal_counts_is_the_form_by_sums():
    layer, xs, dys = a_norm("images", counts=(3, 3, 3))
    for one, other in zip(*(meet(layer, xs, dys, by)[0] for by in ("clients", "samples")), strict=True):
        close(one.y, other.y)
        close(one.dx, other.dx)
        close(one.layer.weight.grad, other.layer.weight.grad)


@pytest.mark.parametrize("pixels", [False, True])
def test_a_padded_lane_with_batch_norm_equals_an_exact_one(pixels):
    module, federation = (
        conv(nn.BatchNorm2d(4)) if pixels else dense(nn.BatchNorm1d(6)),
        build_federation(pixels=pixels),
    )
    work = session_of(module, "fedavg", federation, train__augment={"crop": 1, "flip": True})
    data, down = federation.train, work.initial_state().model.wire()
    workers = [Trainer(work.plan.local, data.x, data.y, 17, pad=pad) for pad in (False, True)]
    for client in (2, 3, 0, 1):
        exact, padded = (
            trainer.run_task(federation.client(client), Task(client, 0, 0, down=down), {})[0] for trainer in workers
        )
        for name, moved in exact.aggregated.items():
            close(padded.aggregated[name], moved)
        assert exact.aggregated["update"].abs().max() > 0


# ---- along a schedule: batch-data and single-sample learning ---------------------------------------------------------

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
CYCLE = {"train__lr_schedule": "one-cycle"}
AUGMENTED = {"train__augment": {"crop": 1, "flip": True}}
ONE_LEFT = {"method__schedule__length": 9}  # two batches of four
REFUSED = {"each": 6, "order": "spread", "on_empty": "drop", "rounds_per_epoch": 2}  # of three samples a label
REFUSED = {f"method__schedule__{key}": value for key, value in REFUSED.items()} | {"train__batch_size": 3}
PIXELS, FEW, SMALL = {"pixels": True}, {"sizes": (5, 4)}, {"scale": 1e-7}


class Case(NamedTuple):
    build: object
    optimizer: str = PLAIN
    norms: tuple = ()  # channels of each, and whether a gradient goes back through it
    asked: dict = MappingProxyType({})
    federation: dict = MappingProxyType({})


def normed(optimizer=PLAIN, asked=MappingProxyType({}), act=nn.ReLU, **options):
    return Case(lambda: dense(nn.BatchNorm1d(6, **options), act=act), optimizer, ((6, True),), asked)


CASES = {
    "batch: two norms": Case(lambda: dense(nn.BatchNorm1d(6), nn.BatchNorm1d(6)), SGD, ((6, True), (6, True))),
    "batch: adam": normed(ADAM),
    "batch: one cycle": normed(SGD, CYCLE),
    "batch: images": Case(lambda: conv(nn.BatchNorm2d(4, momentum=0.3)), SGD, ((4, True),), AUGMENTED, PIXELS),
    "batch: group norm": Case(lambda: conv(nn.GroupNorm(2, 4)), SGD, (), AUGMENTED, PIXELS),
    "batch: frozen layer": Case(frozen, SGD, ((6, False), (6, True))),
    "batch: no scale": normed(SGD, affine=False),
    "batch: no scale, in place": normed(affine=False, act=partial(nn.ReLU, inplace=True)),
    "batch: norm used twice": Case(Shared, norms=((4, False), (4, True))),
    "batch: one left over": normed(asked=ONE_LEFT),
    "batch: one left over, no running statistics": normed(asked=ONE_LEFT, track_running_stats=False),
    "batch: small gradients": Case(lambda: dense(nn.Identity()), ADAM, federation=SMALL),
    "batch: everything refused": Case(dense, asked=REFUSED, federation=FEW),
    "single: plain": Case(lambda: dense(nn.LayerNorm(6))),
    "single: momentum": Case(lambda: dense(nn.LayerNorm(6)), SGD),
    "single: adam, one cycle": Case(lambda: dense(nn.Identity()), ADAM, asked=CYCLE),
    "single: images": Case(lambda: conv(nn.GroupNorm(2, 4)), SGD, (), AUGMENTED, PIXELS),
    "single: everything refused": Case(dense, asked=REFUSED, federation=FEW),
}


@cache
def runs_of(name):
    """Play a case as one machine, by messages and at sites; also give what one machine trained on."""
    case, method = CASES[name], f"stratify-{name.split(':')[0]}"
    make = partial(session_of, case.build(), method, build_federation(**case.federation), **case.asked)
    make = partial(make, train__optimizer=OPTIMIZERS[case.optimizer][0])
    with recorded() as seen:
        fused = played(make(engine__execution="fused"))
    work = make(engine__execution="messages")
    return work, seen, fused, played(work), played(work, lambda work: WireEngine(work.plan.local, work.federation))


@pytest.mark.parametrize("name", CASES)
def test_learning_along_a_schedule_is_centralised_training_wherever_it_happens(name):
    case, (work, seen, *runs) = CASES[name], runs_of(name)
    rates, at = [], 0
    for outcome in (o for o in runs[1].outcomes if o.step.combine):
        steps = sum(r.samples for r in outcome.reports) if "single" in name else 1
        rates += [one_cycle(at, len(seen)) if case.asked is CYCLE else 0.1] * steps  # a client update has one rate
        at += steps
    by_hand = central(work, seen, OPTIMIZERS[case.optimizer][1], rates)
    for run in runs:
        same_model(work, run.state, by_hand)
    assert same(runs[1].state, runs[2].state)
    assert {len(rows) for rows, _ in seen} <= ({1} if "single" in name else {2, 3, 4})
    if not case.asked or case.asked is CYCLE:
        assert sum(len(rows) for rows, _ in seen) == 2 * 30


@pytest.mark.parametrize("name", CASES)
def test_learning_along_a_schedule_costs_the_same_however_it_is_played(name):
    case, (work, _, *runs) = CASES[name], runs_of(name)
    steps = [o.step for o in runs[1].outcomes if o.step.combine]
    client_updates = Counter(ask.client for step in steps for ask in step.asks)
    labels = [len(ask.config["labels"]) for o in runs[1].outcomes for ask in o.step.asks if ask.config]
    refused = [r.metrics["refused"] for o in runs[1].outcomes for r in o.reports if r.metrics]
    left_out = sum(event["samples"] for event in runs[1].events("batch_left_out"))
    trained = sum(r.samples for o in runs[1].outcomes if o.step.combine for r in o.reports)
    assert sum(labels) - sum(map(len, refused)) - left_out == trained
    times, beside = OPTIMIZERS[case.optimizer][2] if "single" in name else (1, 0)
    model, total = times * work.plan.space.P + beside, client_updates.total()
    back, forward = sum(2 * c for c, back in case.norms if back), sum(2 * c for c, _ in case.norms)
    starts, ends = (sum(len(s.asks) for s in steps if getattr(s, end) == "server") for end in ("source", "sink"))
    up = model * ends + total * (forward + len(case.norms) + back) + sum(len(r) + len(set(r)) for r in refused)
    down = model * starts + total * (forward + back) + sum(labels) + 2 * len(labels)
    for run in runs:
        traffic = run.state.traffic
        assert traffic.bytes_down == NUMBER * down
        assert traffic.bytes_up == NUMBER * up
        assert traffic.bytes_p2p == NUMBER * model * (total - starts)  # one transfer a hop
        assert traffic.client_updates == sum(event["visits"] for event in run.events("schedule")) == total
        assert run.state.participation.tolist() == [client_updates[client] for client in range(len(work.federation))]


@pytest.mark.parametrize("method", ["fedtan", "stratify-batch"])
def test_equal_runs_are_equal_where_clients_that_meet_draw_from_torchs_generator(method):
    runs = [played(session_of(Shared(0.5), method, engine__execution="messages"), rounds=3).state for _ in range(3)]
    assert all(same(runs[0], run) for run in runs[1:])


# ---- when things go wrong --------------------------------------------------------------------------------------------


@both_methods
def test_entries_of_lost_clients_are_queued_again(method):
    run = played(session_of(dense(), method, build_federation((9, 9, 9, 9)), system__stragglers__rate=0.3), rounds=1)
    assert ["reports may be lost" in event["why"] for event in run.events("fallback")] == [True]
    gone = set()
    for outcome in (o for o in run.outcomes if o.step.combine):
        assert not gone & {ask.client for ask in outcome.step.asks}
        gone |= set(outcome.missing)
    (event,) = run.events("schedule")
    assert (set(event["gone"]), event["exposure"], event["dropped"]) == (gone, [12, 12, 12], [])
    assert sum(r.samples for o in run.outcomes if o.step.combine for r in o.reports) == 36
    assert gone


@both_methods
def test_an_epoch_without_clients_ends_and_changes_nothing(method):
    norms = [nn.BatchNorm1d(6)] if method == "stratify-batch" else []
    work = session_of(dense(*norms), method, train__optimizer=OPTIMIZERS[SGD][0], system__stragglers__rate=1.0)
    run = played(work)
    assert same(run.state, work.initial_state())
    assert not run.state.server_steps["optimizer"].slots["v"].any()
    assert not run.state.participation.any()
    assert run.events("no_update")
    assert [event["entries"] for event in run.events("schedule")] == [30, 30]


@both_methods
@pytest.mark.parametrize("execution", ["messages", "fused"])
def test_what_is_not_finite_is_dropped(method, execution):
    federation = build_federation((9, 3, 17, 7))
    x = federation.train.x.clone()
    x[9:12] = float("nan")
    federation = replace(federation, train=replace(federation.train, x=x))
    work = session_of(dense(), method, federation, engine__execution=execution, train__optimizer=OPTIMIZERS[SGD][0])
    run = played(work)
    assert {(tuple(e["clients"]), e["why"]) for e in run.events("dropped")} == {((1,), "not finite")}
    assert len(run.events("fallback")) == (2 if execution == "fused" else 0)  # each round is played again by messages
    assert run.state.participation[1] == 0
    assert run.state.model.params.isfinite().all()
    assert run.state.server_steps["optimizer"].slots["v"].isfinite().all()
    assert not same(run.state, work.initial_state())


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"system__stragglers__rate": 0.1}, "reports may be lost"),
        (
            {"method__name": "stratify-single", "method__correct": [{"kind": "prox"}]},
            "prox works inside each client update",
        ),
        ({"method__combine": {"kind": "size", "server": {"kind": "yogi"}}}, "server step Yogi"),
    ],
)
def test_what_cannot_be_played_as_one_is_refused_or_played_by_messages(asked, why):
    with pytest.raises(RequestError, match=why):
        session_of(dense(), "stratify-batch", **asked, engine__execution="fused")
    assert why in session_of(dense(), "stratify-batch", **asked).plan.why_not_fused


# ---- FedTAN ----------------------------------------------------------------------------------------------------------

ONE_STEP = {"method__sample": "full-batch", "train__epochs": 1}


def test_the_common_step_of_fedtan_follows_the_mean_of_client_losses():
    work = session_of(dense(nn.BatchNorm1d(6)), "fedtan", **ONE_STEP)  # one of the four has a single sample
    run, module, data = played(work, rounds=1), work.plan.local.build().double(), work.federation.train
    rows = [work.federation.train_split[client] for client in range(4)]
    inner = [module.fc0(data.x[own].double()) for own in rows]
    mean = sum(x.mean(0) for x in inner) / 4
    variance = sum(((x - mean) ** 2).mean(0) for x in inner) / 4
    scaled = [(x - mean) / (variance + 1e-5).sqrt() * module.norm0.weight + module.norm0.bias for x in inner]
    sum(cross_entropy(module.head(x.relu()), data.y[own]) / 4 for x, own in zip(scaled, rows, strict=True)).backward()
    end = work.plan.space.named(run.state.model)
    for name, parameter in module.named_parameters():
        close(end[name], parameter.detach() - 0.1 * parameter.grad)
    close(end["norm0.running_mean"], 0.1 * mean.detach())
    assert run.state.participation.tolist() == [1, 1, 1, 1]


def test_fedtan_costs_the_statistics_of_one_step_beside_the_models():
    work = session_of(dense(nn.BatchNorm1d(6), nn.BatchNorm1d(6)), "fedtan")
    traffic, numbers = played(work).state.traffic, work.plan.space.P + work.plan.space.Q
    assert traffic.bytes_up == traffic.bytes_down == 2 * 4 * NUMBER * (numbers + 2 * (2 * 6 + 2 * 6))


def test_fedtan_is_refused_without_batch_norm():
    with pytest.raises(RequestError, match="the model has none; use one that has"):
        session_of(dense(nn.LayerNorm(6)), "fedtan")


def test_fedtan_with_one_client_is_fedavg():
    module, alone = dense(nn.BatchNorm1d(6)), build_federation((9,))
    one, other = (played(session_of(module, method, alone)).state.model for method in ("fedtan", "fedavg"))
    close(one.params, other.params)
    close(one.buffers, other.buffers)


def test_fedtan_gives_the_same_model_on_two_lanes(tmp_path):
    asked = {"model.hidden": (5,), "model.norm": "batch", "train.rounds": 2, "train.batch_size": 4}
    start = partial(train, method="fedtan", federation=tiny_federation())
    one, two = (
        start(overrides={**asked, "engine.device": "cpu", "engine.workers": workers}, out=tmp_path / str(workers))
        for workers in (1, 2)
    )
    assert one.events(wall=False) == two.events(wall=False)
    assert all(torch.equal(own, two.model()[name]) for name, own in one.model().items())


# ---- the meeting place -----------------------------------------------------------------------------------------------


def in_time(client_updates, by="samples"):
    """Let client updates meet; give results or the error, and fail instead of waiting for ever."""
    ends = []

    def run():
        try:
            ends.append(run_in_lockstep(client_updates, by)[0])
        except Exception as error:
            ends.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert ends, "the members wait for each other"
    return ends[0]


def bring(*names, value=1.0, count=1.0):
    return lambda all_reduce: [all_reduce.exchange(name, torch.tensor([value]), count)[0].item() for name in names]


@pytest.mark.parametrize(("by", "average"), [("samples", 5 / 4), ("clients", 5 / 2)])
def test_everybody_leaves_with_the_average(by, average):
    assert in_time([bring("a", value=1.0, count=3.0), bring("a", value=4.0)], by) == [[average]] * 2


def test_the_others_go_on_without_a_member_that_is_done():
    client_updates = [bring("a", "b"), bring("a", value=3.0), bring(), bring("a", "b", value=5.0)]
    assert in_time(client_updates) == [[3, 3], [3], [], [3, 3]]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_member_that_fails_takes_the_meeting_down_with_its_own_error(place):
    def context(fails, all_reduce):
        bring("a")(all_reduce)
        if fails:
            raise KeyError("the cause")
        bring("b", "c")(all_reduce)

    error = in_time([partial(context, member == place) for member in range(3)])
    assert isinstance(error, KeyError)


def test_members_that_bring_different_things_do_not_average_them():
    assert isinstance(in_time([bring("a"), bring("b")]), RuntimeError)


# ---- what optimizers remember, and rates inside a round --------------------------------------------------------------


@pytest.mark.parametrize("memory", ["fresh", "kept", "carried"])
@pytest.mark.parametrize("optimizer", [SGD, ADAM])
def test_an_optimizer_forgets_keeps_or_carries_its_memory(optimizer, memory):
    ours, like, _ = OPTIMIZERS[optimizer]
    asked = {"train__clients_per_round": 3, "train__optimizer": {**ours, "state": memory}}
    work = session_of(dense(nn.LayerNorm(6)), "sfl", **asked)
    run, local, data = played(work, rounds=3), work.plan.local, work.federation.train
    module, kept = local.build().double(), {}
    for hop, outcome in enumerate(run.outcomes):
        client = outcome.step.asks[0].client
        rows, where = work.federation.train_split[client], {"round": hop // 3, "step": hop % 3, "client": client}
        steps, owner = like(module.parameters(), lr=0.1), {"fresh": hop, "kept": client, "carried": -1}[memory]
        if owner in kept:
            steps.load_state_dict(kept[owner])
        for epoch in range(2):
            order = rows[local.streams(f"epoch-{epoch}", **where).permutation(len(rows))]
            for batch in np.split(order, range(4, len(rows), 4)):
                steps.zero_grad()
                cross_entropy(module(data.x[batch].double()), data.y[batch]).backward()
                steps.step()
        kept[owner] = copy.deepcopy(steps.state_dict())
    same_model(work, run.state, module.state_dict())


@pytest.mark.parametrize(
    ("schedule", "finer"),
    [
        (Constant(), Constant()),
        (StepDecay(every=2, by=0.3), StepDecay(every=10, by=0.3)),
        (Cosine(floor=0.1), Cosine(floor=0.1)),
        (Cosine(warmup=2), Cosine(warmup=10)),
        (OneCycle(), OneCycle()),
    ],
)
def test_parts_of_a_round_are_steps_of_a_finer_schedule(schedule, finer):
    rate, steps = LearningRate(0.4, schedule, 6), LearningRate(0.4, finer, 30)
    by_part = [rate.at(round, (part, 5)) for round in range(6) for part in range(5)]
    assert by_part == pytest.approx([steps.at(step) for step in range(30)], abs=1e-12)
    assert rate.at(3) == rate.at(3, (0, 1))


def test_one_bad_sample_costs_its_client_and_nobody_else_however_it_is_played():
    federation = build_federation((9, 3, 17, 7))
    x = federation.train.x.clone()
    x[9:12] = float("nan")
    federation = replace(federation, train=replace(federation.train, x=x))
    runs = [
        played(session_of(dense(), "stratify-batch", federation, engine__execution=way))
        for way in ("fused", "messages")
    ]
    assert same(runs[0].state, runs[1].state)
    assert runs[0].state.traffic == runs[1].state.traffic
    assert runs[0].events("schedule") == runs[1].events("schedule")


def test_a_meeting_that_cannot_begin_does_not_wait_for_ever(monkeypatch):
    begin, begun = Thread.start, []

    def limited(thread):
        begun.append(thread)
        if len(begun) == 3:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run_in_lockstep([lambda all_reduce: all_reduce.exchange("a", torch.ones(1), 1.0)] * 4, "samples")


def test_a_mean_of_client_means_is_refused():
    with pytest.raises(RequestError, match="mean of client means"):
        session_of(dense(), "stratify-batch", method__combine="uniform")


def test_stragglers_are_drawn_once_a_round_where_a_round_has_many_steps():
    federation = build_federation((9, 8, 17, 7, 12, 11, 10, 9, 8, 7))
    run = played(session_of(dense(), "stratify-batch", federation, system__stragglers__rate=0.3), rounds=3)
    assert all(len(event["gone"]) <= 3 for event in run.events("schedule"))
    assert any(event["gone"] for event in run.events("schedule"))

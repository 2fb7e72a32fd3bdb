"""FedTAN: exact gradients in batch norms; what optimizers remember between clients, and rates inside a round."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from threading import Thread

import numpy as np
import pytest
import torch
from meeting import ADAM, NUMBER, OPTIMIZERS, SGD, build_federation, close, dense, run_of, same_model, session_of
from torch import nn
from torch.nn.functional import cross_entropy

from fedstrata import train
from fedstrata.client.all_reduce import run_in_lockstep
from fedstrata.core.client_parts import LearningRate
from fedstrata.core.errors import RequestError
from fedstrata.methods.lr_schedules import Constant, Cosine, OneCycle, StepDecay
from fedstrata.testing import tiny_federation
from fedstrata.testing.tiny import same

# ---- FedTAN ----------------------------------------------------------------------------------------------------------

ONE_STEP = {"method__sampler": "full-batch", "train__epochs": 1}


def test_the_common_step_of_fedtan_follows_the_mean_of_client_losses():
    work = session_of(dense(nn.BatchNorm1d(6)), "fedtan", **ONE_STEP)  # one of the four has a single sample
    run, module, data = run_of(work, rounds=1), work.plan.local.build().double(), work.federation.train
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
    traffic, numbers = run_of(work).state.traffic, work.plan.space.P + work.plan.space.Q
    assert traffic.bytes_up == traffic.bytes_down == 2 * 4 * NUMBER * (numbers + 2 * (2 * 6 + 2 * 6))


def test_fedtan_is_refused_without_batch_norm():
    with pytest.raises(RequestError, match="the model has none; use one that has"):
        session_of(dense(nn.LayerNorm(6)), "fedtan")


def test_fedtan_with_one_client_is_fedavg():
    module, alone = dense(nn.BatchNorm1d(6)), build_federation((9,))
    one, other = (run_of(session_of(module, method, alone)).state.model for method in ("fedtan", "fedavg"))
    close(one.params, other.params)
    close(one.buffers, other.buffers)


@pytest.mark.usefixtures("quick_processes")
def test_fedtan_gives_the_same_model_on_two_workers(tmp_path):
    asked = {"model.hidden": (5,), "model.norm": "batch", "train.rounds": 2, "train.batch_size": 4}
    start = partial(train, method="fedtan", federation=tiny_federation())
    one, two = (
        start(overrides={**asked, "engine.device": "cpu", "engine.workers": workers}, out=tmp_path / str(workers))
        for workers in (1, 2)
    )
    assert one.events(wall=False) == two.events(wall=False)
    assert all(torch.equal(own, two.model()[name]) for name, own in one.model().items())


# ---- what optimizers remember, and rates inside a round --------------------------------------------------------------


@pytest.mark.parametrize("memory", ["fresh", "kept", "carried"])
@pytest.mark.parametrize("optimizer", [SGD, ADAM])
def test_an_optimizer_forgets_keeps_or_carries_its_memory(optimizer, memory):
    ours, like, _ = OPTIMIZERS[optimizer]
    asked = {"train__clients_per_round": 3, "train__optimizer": {**ours, "state": memory}}
    work = session_of(dense(nn.LayerNorm(6)), "sfl", **asked)
    run, local, data = run_of(work, rounds=3), work.plan.local, work.federation.train
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


def test_one_bad_sample_costs_its_client_and_nobody_else_however_it_is_run():
    federation = build_federation((9, 3, 17, 7))
    x = federation.train.x.clone()
    x[9:12] = float("nan")
    federation = replace(federation, train=replace(federation.train, x=x))
    runs = [
        run_of(session_of(dense(), "stratify-batch", federation, engine__execution=way))
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
        session_of(dense(), "stratify-batch", method__combiner="uniform")


def test_stragglers_are_drawn_once_a_round_where_a_round_has_many_steps():
    federation = build_federation((9, 8, 17, 7, 12, 11, 10, 9, 8, 7))
    run = run_of(session_of(dense(), "stratify-batch", federation, system__stragglers__rate=0.3), rounds=3)
    assert all(len(event["gone"]) <= 3 for event in run.events("schedule"))
    assert any(event["gone"] for event in run.events("schedule"))


# ---- a number of local steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 3])
def test_every_client_takes_as_many_local_steps_however_many_samples_it_has(epochs):
    asked = {"method__sampler": {"kind": "shuffle", "steps": 5}, "train__batch_size": 4, "train__epochs": epochs}
    work = session_of(dense(nn.BatchNorm1d(6)), "fedtan", build_federation((3, 17, 40)), **asked)
    (step,) = run_of(work, rounds=1).outcomes
    assert [(report.steps, report.work) for report in step.reports] == [(5, 20)] * 3

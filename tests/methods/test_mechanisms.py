"""What each method is for, shown on handwritten digits; each of these can fail.

Tests are paired: a client and its twin start from the same model, with the same samples in the same order, and differ
in one part.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from fedstrata.client.trainer import Trainer
from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.core.machine.threads import one_thread
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round
from fedstrata.testing.tiny import in_process

USUAL = {"model.hidden": (32,), "train.clients_per_round": "all", "train.batch_size": 16, "engine.precision": "fp64"}


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


@cache
def digits(seed, kind="dirichlet-class", noise=0.0):
    """Return ten clients with handwritten digits, by default very unequal ones (Dirichlet 0.1)."""
    asked = {"data.clients": 10, "data.partition.kind": kind, "data.noise": {"labels": noise}, "train.seed": seed}
    return build_federation(Experiment.of(None, **asked))


def work_on(federation, seed, overrides):
    return build_session(
        describe_experiment(None, None, {**USUAL, "train.seed": seed, **overrides}, federation, None), federation, None
    )


def client_updates(work, state, round, engine=None):
    """Run a round; give every client's whole report, and its weight in the mean."""
    engine, whole, weights = engine or in_process(work), {}, {}
    collect = engine.collect
    engine.collect = lambda shares: (whole.update(engine.each()), weights.update(shares), collect(shares))[-1]
    run_round(work.plan, state, work.plan.view(work.client_info, round, lambda *_, **__: None), engine)
    engine.collect = collect
    return whole, weights


def at(work, model):
    """Return the state in which a model was just received."""
    return replace(work.initial_state(), model=model)


def trained(federation, seed, rounds, overrides=()):
    """Return the model after some rounds of FedAvg."""
    work = work_on(federation, seed, {"method.combiner": "uniform", **dict(overrides)})
    state, engine = work.initial_state(), in_process(work)
    for round in range(rounds):
        client_updates(work, state, round, engine)
    return state.model


# ---- FedPBS ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_flagged_clients_of_fedpbs_drift_less_and_the_others_are_fedavgs(mu):
    federation, sizes = digits(0), digits(0).train_split.sizes
    beside = {"train.batch_size": 64, "train.epochs": 3}
    pbs = work_on(federation, 0, {"method.name": "fedpbs", "method.corrections.0.mu": mu, **beside})
    sampler = {"kind": "shuffle", "batch": "capacity"}
    avg = work_on(federation, 0, {"method.sampler": sampler, "method.combiner": "uniform", **beside})
    state, engine, flagged = pbs.initial_state(), in_process(pbs), []
    for round in range(3):
        received = state.model
        held, _ = client_updates(pbs, state, round, engine)
        free, _ = client_updates(avg, at(avg, received), round)
        for client, report in held.items():
            if report.metrics["mu"] > 0:
                flagged.append((round, client))
                assert report.update_norm < free[client].update_norm
            else:
                assert torch.equal(report.aggregated["update"], free[client].aggregated["update"])
    by_variance = [client for _, client in flagged if sizes[client] >= 64]
    by_batch = [client for _, client in flagged if sizes[client] < 64]
    assert by_variance
    assert by_batch
    assert len(flagged) < 30  # of so many client updates


# ---- FedBSS ----------------------------------------------------------------------------------------------------------


def drift_by_epoch(work, model, round):
    """Return how far every client is from the received model at the end of each of its epochs."""
    sampler, lengths, ends = type(work.plan.local.sampler), [], []
    step, plan = Trainer.step, sampler.plan

    def planned(self, context):
        order = plan(self, context)
        steps = [-(-len(epoch) // order.batch_size) for epoch in order.epochs]
        ends.append(len(lengths) + np.cumsum(steps) - 1)
        return order

    def take_step(self, *size):
        step(self, *size)
        lengths.append((self.buf.w - self.buf.w0).norm().item())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "plan", planned)
        patch.setattr(Trainer, "step", take_step)
        client_updates(work, at(work, model), round)
    return np.array(lengths)[np.array(ends)]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (1, 2))])
def test_fedbss_drifts_less_in_its_first_epochs_and_catches_up(seed):
    """On skewed data without noise, as in the paper's figure 3; where labels are wrong, those left out cancel out."""
    federation, beside = digits(seed), {"train.epochs": 5, "train.lr": 0.02}
    received = trained(federation, seed, 2, beside.items())
    bss = work_on(federation, seed, {"method.name": "fedbss", "method.sampler.warmup": 0, **beside})
    avg = work_on(federation, seed, {"method.combiner": "uniform", **beside})
    ratio = (drift_by_epoch(bss, received, 2) / drift_by_epoch(avg, received, 2)).mean(0)
    assert (ratio[:2] < 0.95).all()
    assert ratio[0] < ratio[-1]


@pytest.mark.parametrize("kind", ["iid", "dirichlet-class"])
def test_fedbss_finds_wrong_labels(kind):
    """Of samples beyond the cut of a model that was trained a little, more than half have wrong labels, of all 30 %.

    A model that knows nothing finds no more than chance.
    """
    federation = digits(0, kind, noise=0.3)
    wrong = federation.labels != federation.true_labels
    bss = work_on(federation, 0, {"method.name": "fedbss", "method.sampler": {"warmup": 0, "follow": True}})
    shares = {}
    for name, model in {"trained": trained(federation, 0, 6), "first": bss.initial_state().model}.items():
        reports, _ = client_updates(bss, at(bss, model), 6)
        sides = [(federation.train_split[c], list(r.metrics["biased_samples"])) for c, r in reports.items()]
        shares[name] = np.concatenate([wrong[rows[biased]] for rows, biased in sides]).mean()
    assert wrong[federation.train_split.rows].mean() == pytest.approx(0.3, abs=0.01)
    assert shares["trained"] > 0.5
    assert shares["first"] == pytest.approx(0.3, abs=0.05)


# ---- SCAFFOLD --------------------------------------------------------------------------------------------------------


def global_gradient(work, model):
    """Return the gradient of the mean of all clients' losses."""
    module, federation = work.plan.local.build().double(), work.federation
    work.plan.space.bind(module, model.params.clone(), model.buffers)
    rows = [torch.from_numpy(federation.train_split[client]) for client in range(len(federation))]
    x, y = federation.train.x.double(), federation.train.y
    sum(cross_entropy(module(x[own]), y[own]) / len(rows) for own in rows).backward()
    return torch.cat([p.grad.flatten() for p in module.parameters()])


@pytest.mark.parametrize("gradients", ["update", "raw"])
def test_scaffolds_directions_lie_nearer_the_global_gradient(gradients):
    beside = {"method.name": "scaffold", "method.corrections.0.gradients": gradients, "train.lr": 0.05}
    scaffold = work_on(digits(1), 1, beside)
    without = work_on(digits(1), 1, {**beside, "method.corrections.0.frozen": True})
    state, engine = scaffold.initial_state(), in_process(scaffold)
    for round in range(3):
        received = state.model
        truth = global_gradient(scaffold, received)
        sent = (
            client_updates(scaffold, state, round, engine)[0],
            client_updates(without, at(without, received), round)[0],
        )
        ways = [torch.stack([-r.aggregated["update"] / (r.steps * 0.05) for r in own.values()]) for own in sent]
        apart, aside = ((way - truth).norm(dim=1) for way in ways)
        angle, angle_without = (cosine_similarity(way, truth[None]).mean() for way in ways)
        if round == 0:  # nothing is known yet
            assert torch.equal(*ways)
        else:
            assert (apart < aside).all()
            assert apart.mean() < 0.9 * aside.mean()
            assert angle > angle_without + 0.05


# ---- soft weights ----------------------------------------------------------------------------------------------------


@cache
def trained_on_equal_shares():
    return trained(digits(2, "iid"), 2, 6)


@pytest.mark.parametrize("by", ["gradient", "head-gradient", "loss"])
def test_soft_weights_lower_the_weight_of_a_client_with_wrong_labels(by):
    """The same client, before and after half of its labels were replaced, among nine others that stay as they are."""
    clean = digits(2, "iid")
    rng, rows = np.random.default_rng(0), clean.train_split[0]
    labels = clean.train.y.clone()
    spoilt = rng.choice(rows, len(rows) // 2, replace=False)
    labels[spoilt] = (labels[spoilt] + torch.from_numpy(rng.integers(1, 10, len(spoilt)))) % 10
    noisy = replace(clean, train=replace(clean.train, y=labels))
    received, weights = trained_on_equal_shares(), []
    for federation in (clean, noisy):
        soft = work_on(federation, 2, {"method.combiner": {"kind": "soft", "by": by}, "train.batch_size": 64})
        weights.append(client_updates(soft, at(soft, received), 6)[1])
    before, after = weights
    assert after[0] < 0.8 * before[0]
    assert after[0] == min(after.values())
    assert sum(after.values()) == pytest.approx(1.0)

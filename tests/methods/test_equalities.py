"""Methods that must be one another in a special case, and runs that must not depend on where they happen.

Bit for bit unless a tolerance is stated, in double and single precision.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from sweeping import sweep
from torch import nn
from torch.nn.functional import cross_entropy

from fedstrata.core import registry
from fedstrata.core.errors import FedstrataError
from fedstrata.core.index import Split
from fedstrata.core.machine.threads import one_thread
from fedstrata.methods.corrections.clip import Clip
from fedstrata.methods.corrections.feddyn import FedDyn
from fedstrata.methods.corrections.fedrs import FedRs
from fedstrata.methods.corrections.prox import Prox
from fedstrata.methods.corrections.scaffold import Scaffold
from fedstrata.runs.checkpoints import Checkpoints
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round
from fedstrata.testing import WireEngine, tiny_federation
from fedstrata.testing.tiny import alike, run_rounds, same, session_of

METHODS = sorted(registry.names("methods"))
UNIFORM = {"method.combiner": {"kind": "uniform"}}
FUSED = ("stratify-batch", "stratify-single")  # are run as one where no report can be lost
WITH_STATISTICS = ("fedavg", "scaffold", "moon", "feddyn", "fedcda", "fedyogi", "fedexp", "sfl", "fedtan", "fedbss")
ROBUST = ("median", "trimmed-mean", "norm-clip", "krum", "multi-krum", "geometric-median")
EVERYBODY = {"train.clients_per_round": "all"}
both_precisions = sweep(lambda precision: precision == "fp32", precision=["fp64", "fp32"])


def asked_for(method):
    """Return an experiment in which a method makes sense, run by messages."""
    others = {"fedtan": {"model.norm": "batch"}}.get(method, {})
    return {"method.name": method, "engine.execution": "messages", **others}


def run(precision, overrides):
    return run_rounds(session_of({**overrides, "engine.precision": precision}))[0]


def sites(work):
    return WireEngine(work.plan.local, work.federation)


def normed_work(overrides):
    """Return a run of a network with norm statistics and dropout, some clients of which end in a single sample."""
    torch.manual_seed(0)
    layers = OrderedDict(fc=nn.Linear(4, 5), norm=nn.BatchNorm1d(5), drop=nn.Dropout(0.3), head=nn.Linear(5, 3))
    federation, module = tiny_federation(), nn.Sequential(layers)
    asked = {"train.batch_size": 4, "train.epochs": 2, "train.clients_per_round": 3, "engine.precision": "fp64"}
    return build_session(
        describe_experiment(None, None, {**asked, **overrides}, federation, module), federation, module
    )


# ---- one method is another ------------------------------------------------------------------------------------------

SPECIAL_CASES = {
    "fedprox with mu = 0 is fedavg": ({"method.name": "fedprox", "method.corrections.0.mu": 0.0}, {}),
    "frozen scaffold is fedavg with uniform weights": (
        {"method.name": "scaffold", "method.corrections.0.frozen": True},
        UNIFORM,
    ),
    "frozen scaffold and mu = 0 together are fedavg": (
        {"method.corrections": [Scaffold(frozen=True), Prox(mu=0.0)]},
        {},
    ),
    "sfl with one client a round is fedavg with one": (
        {"method.name": "sfl", "train.clients_per_round": 1},
        {"train.clients_per_round": 1},
    ),
    "power of choice with d = k is selection by size, for samples in a fixed order": (
        {"method.name": "power-of-choice", "method.selector.candidates": 3, "method.sampler": "full-batch"},
        {"method.selector": "size", "method.sampler": "full-batch", **UNIFORM},
    ),
    "power of choice with d = k is selection by size": (
        {"method.name": "power-of-choice", "method.selector.candidates": 3},
        {"method.selector": "size", **UNIFORM},
    ),
    "random selection of all clients is everyone": (
        {"train.clients_per_round": "all"},
        {"method.selector": "everyone"},
    ),
    "sgd with momentum = 0 is sgd": ({"train.optimizer": {"kind": "sgd", "momentum": 0.0}}, {}),
    "fedbss with one epoch is fedavg with uniform weights": (
        {"method.name": "fedbss", "method.sampler.warmup": 0, "train.epochs": 1},
        {"train.epochs": 1, **UNIFORM},
    ),
    "fedbss that is still warming up is fedavg with uniform weights": (
        {"method.name": "fedbss", "method.sampler.warmup": 99},
        UNIFORM,
    ),
    "inco without stages is fedavg": ({"method.name": "inco", "method.combiner.by": "size"}, {}),
    "inco as its authors average, without stages, is the plain mean": ({"method.name": "inco"}, UNIFORM),
    "moon with mu = 0 is fedavg": ({"method.name": "moon", "method.corrections.0.mu": 0.0}, {}),
    "fedrs with a = 1 is fedavg": ({"method.name": "fedrs", "method.corrections.0.alpha": 1.0}, {}),
    "soft fedrs with a = 1 is fedavg": ({"method.corrections": [FedRs(alpha=1.0, soft=True)]}, {}),
    "fedlc with T = 0 is fedavg": ({"method.name": "fedlc", "method.corrections.0.temperature": 0.0}, {}),
    "frozen feddyn is fedprox with mu = a": (
        {"method.corrections": [FedDyn(alpha=0.3, frozen=True)]},
        {"method.corrections": [Prox(mu=0.3)]},
    ),
    "soft weights with tau = 0 are uniform": ({"method.combiner": {"kind": "soft", "tau": 0.0}}, UNIFORM),
    "inverse probability of equal chances is fedavg": ({"method.combiner": "inverse-probability"}, {}),
    "fedpbs of stable clients is fedavg with uniform weights": (
        {
            "method.name": "fedpbs",
            "method.corrections.0.v_th": 1e9,
            "method.corrections.0.b_th": 1,
            "method.sampler.least": 4,
        },
        UNIFORM,
    ),
    "fedpbs of unstable clients is fedprox with uniform weights": (
        {"method.name": "fedpbs", "method.corrections.0.v_th": 0.0, "method.sampler.least": 4},
        {"method.corrections": [Prox(mu=0.01)], **UNIFORM},
    ),
    "fedga without samples at the server is fedavg": ({"method.name": "fedga-greedy"}, {}),
    "clipping far above every gradient is no clipping": ({"method.corrections": [Clip(norm=1e6)]}, {}),
    "a trimmed mean of three clients is their median": (
        {"method.combiner": "trimmed-mean", "train.clients_per_round": 3},
        {"method.combiner": "median", "train.clients_per_round": 3},
    ),
    "clipping far above every update is fedavg": ({"method.combiner": {"kind": "norm-clip", "bound": 1e6}}, {}),
    "multi-krum that keeps one update is krum": (
        {"method.combiner": {"kind": "multi-krum", "keep": 1}},
        {"method.combiner": "krum"},
    ),
    "multi-krum that keeps all updates is fedavg with uniform weights": (
        {"method.combiner": {"kind": "multi-krum", "keep": 99}},
        UNIFORM,
    ),
    "a geometric median smoothed beyond every distance is fedavg with uniform weights": (
        {"method.combiner": {"kind": "geometric-median", "smoothing": 2.0**40}},
        UNIFORM,
    ),
    "fedexp of one client is fedavg": (
        {"method.name": "fedexp", "train.clients_per_round": 1},
        {"train.clients_per_round": 1},
    ),
}


@both_precisions
@pytest.mark.parametrize("case", SPECIAL_CASES)
def test_special_case(case, precision):
    one, other = SPECIAL_CASES[case]
    assert same(run(precision, one), run(precision, other))


@both_precisions
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"method.name": "fedprox", "method.corrections.0.mu": 0.5}, {}),
        ({"method.name": "scaffold"}, UNIFORM),
        ({"method.name": "sfl"}, {}),
        ({"method.name": "power-of-choice", "method.selector.candidates": 6}, {"method.selector": "size", **UNIFORM}),
        (UNIFORM, {}),
        ({"train.seed": 1}, {}),
        ({"method.name": "fednova"}, {}),
        ({"method.name": "fedbss", "method.sampler.warmup": 0}, UNIFORM),
        ({"method.name": "moon"}, {}),
        ({"method.name": "fedrs"}, {}),
        ({"method.name": "fedlc"}, {}),
        ({"method.corrections": [FedDyn(alpha=0.3)]}, {"method.corrections": [Prox(mu=0.3)]}),
        ({"method.corrections": [FedDyn(alpha=0.3, frozen=True)]}, {"method.corrections": [Prox(mu=0.2)]}),
        ({"method.combiner": "soft"}, UNIFORM),
        ({"method.name": "fedcda", **EVERYBODY}, {**UNIFORM, **EVERYBODY}),
        ({"method.name": "fedpbs", "method.sampler.least": 4}, UNIFORM),
        ({"method.selector": "size", "method.combiner": "inverse-probability"}, {"method.selector": "size"}),
        ({"method.corrections": [Clip(norm=0.1)]}, {}),
        ({"method.name": "fedexp"}, UNIFORM),
        *(({"method.combiner": kind}, {}) for kind in ROBUST),
        *(({"method.combiner": kind}, UNIFORM) for kind in ROBUST),
        ({"method.combiner": "multi-krum"}, {"method.combiner": "krum"}),
    ],
)
def test_outside_the_special_case_methods_differ(one, other, precision):
    assert not same(run(precision, one), run(precision, other))


@pytest.mark.parametrize(("precision", "gap"), [("fp64", 1e-12), ("fp32", 1e-5)])
@pytest.mark.parametrize("warmup", [0, 2])
def test_fedcda_that_keeps_one_model_of_everybody_is_fedavg_with_uniform_weights(precision, gap, warmup):
    combine = {"kind": "fedcda", "models": 1, "warmup": warmup}
    one, other = run(precision, {"method.combiner": combine, **EVERYBODY}), run(precision, {**UNIFORM, **EVERYBODY})
    torch.testing.assert_close(one.model.params, other.model.params, rtol=0, atol=gap)


@both_precisions
def test_fednova_of_clients_that_take_equally_many_steps_is_fedavg(precision):
    """Five to eight samples are two batches of four."""
    rows = np.split(np.arange(26), [5, 11, 18])
    federation = replace(tiny_federation(4), train_split=Split.of(rows))
    asked = {"train.clients_per_round": 3, "engine.precision": precision}
    one, other = (run_rounds(session_of({**asked, "method.name": m}, federation))[0] for m in ("fednova", "fedavg"))
    assert same(one, other)


@both_precisions
def test_flips_with_one_cluster_is_a_fair_rotation(precision):
    """Everybody takes part once before anybody takes part twice, in the order of the seeded key."""
    work = session_of({"method.selector": {"kind": "flips", "clusters": 1}, "engine.precision": precision})
    turns = [[a.client for a in outcome.step.asks] for (outcome,) in run_rounds(work)[1]]
    key = work.client_info.key
    order = sorted(range(6), key=lambda client: key[client])
    assert turns == [sorted(order[:3]), sorted(order[3:])] * 2


@both_precisions
def test_server_sgd_with_rate_one_is_no_server_step(precision):
    explicit = {"method.server_step": {"kind": "sgd", "lr": 1.0}}
    bare = session_of({"engine.precision": precision})
    bare = replace(bare, plan=replace(bare.plan, server_steps={}))
    assert same(run(precision, explicit), run_rounds(bare)[0])


@pytest.mark.parametrize(("precision", "gap"), [("fp64", 1e-12), ("fp32", 1e-5)])
def test_fedsgd_is_fedavg_with_one_huge_batch_over_everyone(precision, gap):
    huge = {"method.selector": "everyone", "train.epochs": 1, "train.batch_size": 10_000}
    one, other = run(precision, {"method.name": "fedsgd"}), run(precision, huge)
    torch.testing.assert_close(one.model.params, other.model.params, rtol=0, atol=gap)


@pytest.mark.parametrize(("precision", "gap"), [("fp64", 1e-12), ("fp32", 1e-5)])
def test_sfl_with_one_client_is_local_training(precision, gap):
    work = session_of({"method.name": "sfl", "train.clients_per_round": 1, "engine.precision": precision})
    state, outcomes = run_rounds(work)
    local, data = work.plan.local, work.federation.train
    module = local.build().to(local.dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for round, (outcome,) in enumerate(outcomes):
        (ask,) = outcome.step.asks
        rows = work.federation.train_split[ask.client]
        for epoch in range(local.epochs):
            order = local.streams(f"epoch-{epoch}", round=round, client=ask.client).permutation(len(rows))
            for batch in np.split(rows[order], range(4, len(rows), 4)):
                optimizer.zero_grad()
                cross_entropy(module(data.x[batch].to(local.dtype)), data.y[batch]).backward()
                optimizer.step()
    by_hand = nn.utils.parameters_to_vector(module.parameters()).detach()
    torch.testing.assert_close(state.model.params, by_hand, rtol=0, atol=gap)


@both_precisions
def test_equal_sizes_make_both_weightings_equal(precision):
    federation = replace(tiny_federation(), train_split=_even(tiny_federation().train_split, 6))
    asked = {"engine.precision": precision, "train.clients_per_round": 4}  # 1/4 is exact
    runs = [run_rounds(session_of({**asked, **extra}, federation))[0] for extra in ({}, UNIFORM)]
    assert same(*runs)


def _even(split, clients):
    return type(split).of(np.split(split.rows[: len(split.rows) // clients * clients], clients))


# ---- it does not matter where ---------------------------------------------------------------------------------------


@sweep(
    lambda method, precision, late: precision == "fp32" and late,
    method=METHODS,
    precision=["fp64", "fp32"],
    stragglers=[0.0, 0.5],
)
def test_in_process_equals_sites_behind_bytes(method, precision, stragglers):
    asked = {**asked_for(method), "engine.precision": precision, "system.stragglers.rate": stragglers}
    (here, seen), (there, told) = run_rounds(session_of(asked)), run_rounds(session_of(asked), engine=sites)
    assert same(here, there)
    assert alike(seen, told)
    assert here.traffic == there.traffic
    assert alike(here.participation_log, there.participation_log)


@sweep(
    lambda method, precision, late, how, cut: (
        (precision, how, cut) == ("fp32", "auto", 3) and (late or method in FUSED)
    ),
    method=METHODS,
    precision=["fp64", "fp32"],
    stragglers=[0.0, 0.5],
    execution=["auto", "messages"],
    cut=[1, 3],
)
def test_resumed_equals_uninterrupted(method, precision, stragglers, execution, cut):
    asked = {**asked_for(method), "engine.precision": precision, "system.stragglers.rate": stragglers}
    asked |= {"engine.execution": execution}
    if method.startswith("stratify"):
        asked |= {"method.schedule.rounds_per_epoch": 3}
    whole, outcomes = run_rounds(session_of(asked))
    resumed, again = run_rounds(session_of(asked), cut=cut)
    assert same(whole, resumed)
    assert alike(outcomes, again)
    assert whole.traffic == resumed.traffic
    assert whole.participation.tolist() == resumed.participation.tolist()


# Some combine and carry statistics in a way of their own; stratify-single refuses batch norm.
@sweep(lambda method: method in WITH_STATISTICS, method=[m for m in METHODS if m != "stratify-single"])
def test_norm_statistics_and_dropout_are_the_same_everywhere(method):
    asked = {"method.name": method, "engine.execution": "messages"}
    whole, _ = run_rounds(normed_work(asked))
    behind_bytes, _ = run_rounds(normed_work(asked), engine=sites)
    resumed, _ = run_rounds(normed_work(asked), cut=2)
    assert whole.model.buffers.numel() == 10
    assert not same(whole, run_rounds(normed_work({**asked, "train.seed": 1}))[0])
    assert same(whole, behind_bytes)
    assert same(whole, resumed)


def run_on(work, engine, state, rounds):
    for round in range(state.round, rounds):
        view = work.plan.view(work.client_info, round, lambda *_, **__: None)
        with one_thread():
            run_round(work.plan, state, view, engine)
        state.round += 1
    return state


@sweep(
    lambda method, precision, late, lost_after: (precision, lost_after) == (("fp32", 3) if late else ("fp64", 6)),
    method=["scaffold", "power-of-choice"],
    precision=["fp64", "fp32"],
    stragglers=[0.0, 0.5],
    lost_after=[3, 5, 6],
)
def test_a_server_lost_while_sites_live_on(tmp_path, method, precision, stragglers, lost_after):
    """The server saved after round 2, went on, and died; sites keep what that checkpoint relies on."""
    corrected = {"method.name": method, "method.corrections": [Scaffold()]}
    asked = {**corrected, "engine.precision": precision, "system.stragglers.rate": stragglers, "train.rounds": 6}
    work = session_of(asked)
    whole = run_on(work, sites(work), work.initial_state(), 6)

    engine = sites(work)
    state = run_on(work, engine, work.initial_state(), 2)
    state.participation_log.secure()
    Checkpoints(tmp_path).write(2, state, engine.client_states(), {})
    run_on(work, engine, state, lost_after)
    checkpoints = Checkpoints(tmp_path)
    saved, client_states = checkpoints.read(checkpoints.manifest(), like=work.initial_state())
    engine.restore(client_states)
    assert saved.round == 2
    assert not alike(saved.participation_log.accepted, state.participation_log.accepted)
    assert same(whole, run_on(work, engine, saved, 6))


def test_without_the_durable_version_a_lost_server_cannot_be_replayed():
    """Negative control: sites that are never told of the checkpoint forget it, and say so."""
    work = session_of({"method.name": "scaffold", "train.clients_per_round": "all"})
    engine = sites(work)
    state = run_on(work, engine, work.initial_state(), 2)
    older = copy.deepcopy(state)
    run_on(work, engine, state, 4)
    with pytest.raises(FedstrataError, match=r"has no state of round and step \(1, 0\)"):
        run_on(work, engine, older, 4)

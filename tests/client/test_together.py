"""Clients that compute together along a schedule of labels: global batches, models that travel, and what goes wrong.

By messages, at sites behind bytes and as one client update of one machine they must compute what plain PyTorch computes
on everybody's samples. Numbers are the specification's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

import pytest
from meeting import (
    ADAM,
    NUMBER,
    OPTIMIZERS,
    PLAIN,
    SGD,
    Shared,
    both_methods,
    build_federation,
    central,
    conv,
    dense,
    frozen,
    one_cycle,
    recorded,
    run_of,
    same_model,
    session_of,
)
from torch import nn

from fedstrata.core.errors import RequestError
from fedstrata.testing import WireEngine
from fedstrata.testing.tiny import same

# ---- along a schedule: batch-data and single-sample learning ---------------------------------------------------------


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
    """Run a case as one machine, by messages and at sites; also give what one machine trained on."""
    case, method = CASES[name], f"stratify-{name.split(':')[0]}"
    make = partial(session_of, case.build(), method, build_federation(**case.federation), **case.asked)
    make = partial(make, train__optimizer=OPTIMIZERS[case.optimizer][0])
    with recorded() as seen:
        fused = run_of(make(engine__execution="fused"))
    work = make(engine__execution="messages")
    return work, seen, fused, run_of(work), run_of(work, lambda work: WireEngine(work.plan.local, work.federation))


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
def test_learning_along_a_schedule_costs_the_same_however_it_is_run(name):
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
    delivered = sum(len(o.step.asks) for o in runs[1].outcomes if o.step.kind == "deliver")
    assert (delivered > 0) == ("single" in name)  # everybody gets the model of a finished epoch
    down = model * starts + work.plan.space.P * delivered + total * (forward + back) + sum(labels) + 2 * len(labels)
    for run in runs:
        traffic = run.state.traffic
        assert traffic.bytes_down == NUMBER * down
        assert traffic.bytes_up == NUMBER * up
        assert traffic.bytes_p2p == NUMBER * model * (total - starts)  # one transfer a hop
        assert traffic.client_updates == sum(event["client_updates"] for event in run.events("schedule")) == total
        assert run.state.participation.tolist() == [client_updates[client] for client in range(len(work.federation))]


@pytest.mark.parametrize("method", ["fedtan", "stratify-batch"])
def test_equal_runs_are_equal_where_clients_that_meet_draw_from_torchs_generator(method):
    runs = [run_of(session_of(Shared(0.5), method, engine__execution="messages"), rounds=3).state for _ in range(3)]
    assert all(same(runs[0], run) for run in runs[1:])


# ---- when things go wrong --------------------------------------------------------------------------------------------


@both_methods
def test_entries_of_lost_clients_are_queued_again(method):
    run = run_of(session_of(dense(), method, build_federation((9, 9, 9, 9)), system__stragglers__rate=0.3), rounds=1)
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
    run = run_of(work)
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
    run = run_of(work)
    assert {(tuple(e["clients"]), e["why"]) for e in run.events("dropped")} == {((1,), "not finite")}
    assert len(run.events("fallback")) == (2 if execution == "fused" else 0)  # each round is run again by messages
    assert run.state.participation[1] == 0
    assert run.state.model.params.isfinite().all()
    assert run.state.server_steps["optimizer"].slots["v"].isfinite().all()
    assert not same(run.state, work.initial_state())


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"system__stragglers__rate": 0.1}, "reports may be lost"),
        (
            {"method__name": "stratify-single", "method__corrections": [{"kind": "prox"}]},
            "prox works inside each client update",
        ),
        ({"method__server_step": {"kind": "yogi"}}, "server step yogi"),
    ],
)
def test_what_cannot_be_run_as_one_is_refused_or_run_by_messages(asked, why):
    with pytest.raises(RequestError, match=why):
        session_of(dense(), "stratify-batch", **asked, engine__execution="fused")
    assert why in session_of(dense(), "stratify-batch", **asked).plan.why_not_fused

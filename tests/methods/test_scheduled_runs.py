"""Schedules of labels at the client and in whole runs: which samples are used, who is skipped, what is refused."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedstrata import Federation
from fedstrata.cli import main
from fedstrata.core.client_context import ClientContext, Gradient
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.client_parts import Client
from fedstrata.core.machine.threads import one_thread
from fedstrata.core.messages import Task
from fedstrata.core.rng import Streams
from fedstrata.data.devices import Devices
from fedstrata.methods.schedules.take import Take
from fedstrata.server.loop import run_round
from fedstrata.testing import WireEngine
from fedstrata.testing.tiny import in_process, run_rounds, same, session_of

# ---- at the client --------------------------------------------------------------------------------------------------


class Desk:
    """One client with 3 samples of label 0 and 2 of label 1, all of whose reports are accepted."""

    labels = np.array([0, 1, 0, 1, 0])

    def __init__(self, **options):
        self.take, self.client_state, self.trained = Take(**options), {}, []

    def context(self, labels=(), epoch=0, batch=1):
        config = {"labels": tuple(labels), "epoch": epoch, "batch": batch}
        client, streams = Client(0, np.arange(5), self.labels, 2), Streams(0)
        rng = lambda purpose, **where: streams(purpose, **({"round": epoch, "client": 0} | where))  # noqa: E731
        return ClientContext(
            client, Task(0, epoch, 0, config=config), self.client_state, {}, 1, 4, 0.1, rng, None, self.learn, None
        )

    def learn(self, positions):
        self.trained += positions.tolist()
        return Gradient(torch.ones(2) * len(positions), torch.tensor(1.0))

    def kept(self, done):
        self.client_state = {**self.client_state, **done.client_state}
        return done

    def reserve(self, *where, **rest):
        return self.kept(self.take.reserve(self.context(*where, **rest))).metrics["refused"]

    def gradient(self):
        return self.kept(self.take.gradient(self.context()))

    def plan(self, *where):
        order = self.kept(self.take.plan(self.context(*where)))
        return order.epochs[0].tolist(), order.metrics


def test_two_reservations_for_a_batch_are_trained_on_together():
    desk = Desk()
    assert desk.reserve([0, 1]) == desk.reserve([0]) == ()
    assert desk.gradient().samples == len(set(desk.trained)) == 3
    assert desk.labels[desk.trained].tolist() == [0, 1, 0]


def test_a_sample_reserved_for_a_batch_that_never_came_is_given_next():
    desk = Desk()
    desk.reserve([0, 0, 1], batch=1)
    first, _, last = desk.client_state["held"].tolist()
    desk.reserve([0, 1], batch=2)
    desk.gradient()
    assert desk.trained == [first, last]
    assert desk.reserve([0, 0, 0, 1, 1], batch=3) == (0, 1)
    desk.gradient()
    assert sorted(desk.trained) == [0, 1, 2, 3, 4]


def test_a_new_epoch_starts_at_the_front_in_a_new_order_and_forgets_reservations():
    desk, orders = Desk(), set()
    for epoch in range(12):
        assert desk.reserve([0, 0, 0, 1, 1], epoch) == ()
        orders.add(tuple(desk.client_state["held"].tolist()))
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert len(orders) > 4


def test_what_is_used_up_is_refused_and_named_exhausted_until_a_new_pass():
    desk = Desk()
    positions, metrics = desk.plan([1, 0, 1, 1, 0, 1])
    assert desk.labels[positions].tolist() == [1, 0, 1, 0]
    assert metrics == {"refused": (1, 1), "exhausted": (1,)}
    assert sorted(positions + desk.plan([0, 0, 1])[0]) == [0, 1, 2, 3, 4]
    assert sorted(desk.plan([0, 0, 0], 1)[0]) == [0, 2, 4]
    passes = {tuple(desk.plan([2 * turn] * 3, 2)[0]) for turn in range(12)}
    assert {tuple(sorted(order)) for order in passes} == {(0, 2, 4)}
    assert len(passes) > 2
    desk = Desk(replacement=True)
    positions = desk.plan([0] * 5)[0] + desk.plan([0] * 4)[0]
    assert all(sorted(positions[i : i + 3]) == [0, 2, 4] for i in (0, 3, 6))


# ---- whole runs -----------------------------------------------------------------------------------------------------

DRIVERS = pytest.mark.parametrize("driver", ["chain", "sync"])
EXECUTIONS = pytest.mark.parametrize("execution", ["messages", "fused"])


def stratified(driver, execution="messages", federation=None, **options):
    schedule = {"kind": "stratified", **options}
    return session_of({"method.driver": driver, "method.schedule": schedule, "engine.execution": execution}, federation)


def run_of(work, count=2, engine=in_process):
    """Run rounds: the last state, what was noted by kind, and who was asked in each round."""
    notes, asked, state, at = {}, [], work.initial_state(), engine(work)
    client_info = work.client_info if at.can_fuse else work.client_info.without_ground_truth()
    for r in range(count):
        view = work.plan.view(client_info, r, lambda kind, **fields: notes.setdefault(kind, []).append(fields))
        with one_thread():
            outcomes = run_round(work.plan, state, view, at)
        asked.append(Counter(ask.client for outcome in outcomes for ask in outcome.step.asks))
    return state, notes, asked


@pytest.fixture
def rows(monkeypatch):
    """Record which rows of the data are trained on, by epoch, in order."""
    rows, plan, gradient = {}, Take.plan, Take.gradient

    def planned(take, context):
        order = plan(take, context)
        rows.setdefault(int(order.client_state["epoch"]), []).extend(context.client.rows[order.epochs[0]].tolist())
        return order

    def held(take, context):
        positions = context.client_state["held"].numpy()
        rows.setdefault(int(context.client_state["epoch"]), []).extend(context.client.rows[positions].tolist())
        return gradient(take, context)

    monkeypatch.setattr(Take, "plan", planned)
    monkeypatch.setattr(Take, "gradient", held)
    return rows


@DRIVERS
@EXECUTIONS
@pytest.mark.parametrize("parts", [1, 3])
def test_capped_uses_every_sample_exactly_once_an_epoch(driver, execution, parts, rows):
    work = stratified(driver, execution, frequency="capped", rounds_per_epoch=parts)
    _, notes, _ = run_of(work, 2 * parts)
    everything = list(range(len(work.federation.train)))
    assert [sorted(own) for own in rows.values()] == [everything, everything]
    assert [event["epoch"] for event in notes["schedule"]] == [1] * parts + [2] * parts


@DRIVERS
@EXECUTIONS
def test_uniform_without_refill_uses_no_sample_twice(driver, execution, rows):
    work = stratified(driver, execution, on_empty="drop")
    _, notes, _ = run_of(work)
    totals, labels = work.federation.counts.sum(0), work.federation.labels
    for own, event in zip(rows.values(), notes["schedule"], strict=True):
        assert len(set(own)) == len(own)
        assert np.bincount(labels[own]).tolist() == event["exposure"]
        assert event["exposure"] == np.minimum(totals, np.ceil(totals.sum() / 3)).tolist()


@DRIVERS
def test_an_epoch_in_several_rounds_follows_the_same_schedule(driver, rows):
    seen = []
    for parts in (1, 4):
        rows.clear()
        work = stratified(driver, replacement=True, rounds_per_epoch=parts)
        entries = [event["entries"] for event in run_of(work, parts)[1]["schedule"]]
        assert max(entries) - min(entries) <= (1 if driver == "chain" else 4)
        labels = work.federation.labels[rows[0]]
        seen.append([sorted(labels[i : i + 4]) for i in range(0, len(labels), 4)])  # one batch comes client by client
    assert seen[0] == seen[1]


@DRIVERS
def test_an_epoch_is_resumed_in_its_middle(driver):
    whole, outcomes = run_rounds(stratified(driver, clients="remaining", rounds_per_epoch=4), 6)
    again, seen = run_rounds(stratified(driver, clients="remaining", rounds_per_epoch=4), 6, cut=3)
    assert same(whole, again)
    assert outcomes == seen
    assert (whole.driver.epochs, whole.driver.rounds) == (2, 2)


@EXECUTIONS
def test_a_batch_larger_than_the_schedule_is_one_exact_gradient_step(execution):
    work = stratified("sync", execution, frequency="capped")
    work = replace(work, plan=replace(work.plan, local=replace(work.plan.local, batch_size=500)))
    local, data = work.plan.local, work.federation.train
    module = local.build().to(local.dtype)
    gradients = torch.autograd.grad(cross_entropy(module(data.x.to(local.dtype)), data.y), list(module.parameters()))
    by_hand = work.initial_state().model.params - 0.1 * torch.cat([g.flatten() for g in gradients])
    torch.testing.assert_close(run_of(work, 1)[0].model.params, by_hand, rtol=0, atol=1e-12)


def deaf(*clients, until=99):
    class Deaf(WireEngine):
        def ask(self, step, tasks):
            return super().ask(step, [t for t in tasks if t.client not in clients or t.round >= until])

    return lambda work: Deaf(work.plan.local, work.federation)


@DRIVERS
def test_a_silent_client_is_skipped_until_the_next_epoch(driver):
    _, notes, asked = run_of(stratified(driver, each=12), 2, deaf(3, until=1))
    assert [(event["gone"], event["exposure"]) for event in notes["schedule"]] == [([3], [12] * 3), ([], [12] * 3)]
    assert asked[0][3] == 1 <= asked[1][3]


@DRIVERS
def test_a_label_whose_holders_are_silent_is_dropped_and_with_nobody_there_the_model_stays(driver):
    x, y = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.repeat([0, 1, 2], 10)
    federation = Federation.from_arrays(x, y, [range(15), range(15, 20), range(20, 30)], test=(x, y))
    _, notes, _ = run_of(stratified(driver, federation=federation), 1, deaf(2))
    assert [event["stratum"] for event in notes["label_dropped"]] == [2]
    assert [(event["exposure"], event["entries"]) for event in notes["schedule"]] == [([10, 10, 0], 30)]
    work = stratified(driver, federation=federation)
    state, notes, _ = run_of(work, 2, deaf(0, 1, 2))
    assert same(state, work.initial_state())
    assert [event["dropped"] for event in notes["schedule"]] == [[0, 1, 2]] * 2


@DRIVERS
@EXECUTIONS
def test_a_run_on_false_beliefs_ends(driver, execution):
    work = stratified(driver, execution)
    known, true = {"labels": np.ones((6, 3), bool), "totals": np.array([9, 9, 90])}, work.client_info
    known = ClientInfo(true.clients, true.classes, true.holders, true.key, known, true.ground_truth)
    work = replace(work, client_info=known)
    assert [event["exposure"] for event in run_of(work)[1]["schedule"]] == [[36, 36, 36]] * 2


@dataclass(frozen=True)
class AwayLater(Devices):
    """Client 4 cannot be asked from the second round on."""

    def find_available(self, view):
        return view.eligible[view.eligible != 4] if view.round else view.eligible


@DRIVERS
def test_who_goes_away_in_the_middle_of_an_epoch_is_not_asked(driver):
    work = stratified(driver, rounds_per_epoch=3)
    work = replace(work, plan=replace(work.plan, system=AwayLater()))
    _, notes, asked = run_of(work, 3)
    assert [4 in clients for clients in asked] == [True, False, False]
    assert sum(event["entries"] for event in notes["schedule"]) == len(work.federation.train)


def test_one_label_overall_is_said():
    x, y = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32), np.arange(9) % 2
    federation = Federation.from_arrays(x, y, [np.flatnonzero(y), []], test=(x, y))
    _, notes, _ = run_of(stratified("chain", federation=federation), 1)
    assert [event["what"] for event in notes["warning"]] == ["method.schedule"]
    assert notes["schedule"][0]["exposure"] == [0, 4]


# ---- requests that are refused --------------------------------------------------------------------------------------

SINGLE, BATCH = "method.name=stratify-single", "method.name=stratify-batch"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((SINGLE, "method.schedule.chunk=0"), "method.schedule.chunk = 0 is not valid"),
        ((SINGLE, "method.schedule.chunks=3"), 'method.schedule.chunks is not an option (did you mean "chunk"?)'),
        ((SINGLE, "method.schedule.pool=0.25"), "method.schedule.pool = 0.25 is not valid"),
        ((SINGLE, "method.schedule.chunk=1", "method.schedule.pool=3"), "set method.schedule.chunk above 1"),
        ((SINGLE, "method.schedule.chunk=1", "method.schedule.slack=3"), "set method.schedule.chunk above 1"),
        ((SINGLE, "method.schedule.strata=none", "method.schedule.slack=3"), "method.schedule.slack changes the order"),
        ((BATCH, "method.schedule.pool=3"), "method.schedule.pool plans single samples"),
        ((BATCH, "method.schedule.slack=3"), "method.schedule.slack plans single samples"),
        ((SINGLE, "method.schedule.frequency=often"), 'method.schedule.frequency = "often" is not valid'),
        (("method.driver=sync",), "method.schedule"),
        (("method.schedule=stratified",), "method.driver"),
        ((SINGLE, "method.selector=size"), "method.selector"),
        ((BATCH, "method.sampler=full-batch"), "method.sampler"),
        ((SINGLE, "model.norm=batch"), "batch statistics"),
        ((SINGLE, "train.optimizer.momentum=0.9"), "train.optimizer.state"),
        ((SINGLE, "method.server_step.lr=0.5"), "method.server_step"),
        ((BATCH, "method.schedule.rounds_per_epoch=2", "data.stream.start=0.2"), "method.schedule.rounds_per_epoch"),
        ((SINGLE, "method.schedule.rounds_per_epoch=2", "data.drift.at=[2]"), "method.schedule.rounds_per_epoch"),
        ((BATCH, "method.schedule.chunk=50"), "method.schedule.chunk plans single samples"),
        ((BATCH, "method.schedule.pool=5"), "method.schedule.pool plans single samples"),
    ],
)
def test_a_wrong_request_ends_with_code_2_and_names_the_key(asked, said, capsys, monkeypatch):
    settings = [word for pair in (*asked, "train.rounds=2") for word in ("--set", pair)]
    monkeypatch.setattr(sys, "argv", ["fedstrata", "run", "-q", *settings])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert said in err
    assert not Path("runs").exists()

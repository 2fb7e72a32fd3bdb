"""A part of the clients that errs is told what it gave, and what is allowed.

Broken parts stand at module level: experiments name parts by import path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hooks import GIVEN, given

from fedstrata.client.trainer import Trainer
from fedstrata.client.vmapped import VmappedTrainer
from fedstrata.core.client_context import Done
from fedstrata.core.client_parts import Correction, Optimizer, Order
from fedstrata.core.errors import PartError, RequestError
from fedstrata.core.messages import Slot, Task
from fedstrata.core.sampler import Sampler
from fedstrata.core.server_parts import Schedule
from fedstrata.methods.lr_schedules import LRSchedule
from fedstrata.methods.schedules.stratified import Stratified
from fedstrata.testing.tiny import run_rounds, session_of


@dataclass(frozen=True)
class OddPart(Correction):
    """A correction whose hooks are told from outside."""

    def declare_slots(self, space):
        return given("declare_slots", dict, space)

    def declare_aggregated(self, space):
        return given("declare_aggregated", dict, space)

    def declare_client_state(self, space):
        return given("declare_client_state", dict, space)

    def fill(self, own, buf, context):
        return given("fill", lambda: None, own, buf, context)

    def edit_logits(self, own, buf, logits):
        return given("edit_logits", lambda: logits, logits)

    def add_loss(self, own, buf, batch):
        return given("add_loss", lambda: None, batch)

    def observe(self, own, buf, batch):
        own[given("observe", lambda: next(iter(own), None))] if "observe" in GIVEN else None
        return given("observed", lambda: None)

    def edit_gradient(self, own, buf, rate):
        if "edit_gradient" in GIVEN:
            buf.g.add_(own[GIVEN["edit_gradient"]])
        return given("edited", lambda: None, buf)

    def finish(self, own, buf, context):
        if "kept" in GIVEN:
            return Done(metrics={"x": context.client_state[GIVEN["kept"]].sum()})
        return given("finish", Done, own, buf)


def train_one(overrides, at_once=False):
    """Train one client, as every engine does; or as one of several at once, as engines do with tiny models."""
    work = session_of(overrides)
    train = work.federation.train
    trainer = Trainer(work.plan.local, train.x, train.y, int(work.federation.train_split.sizes.max()))
    client, task = work.federation.client(1), Task(1, 0, 0, down=work.initial_state().model.wire())
    if at_once:
        return VmappedTrainer(trainer, 2).run_tasks([client], [task], [{}])
    return trainer.run_task(client, task, {})


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        (
            {"edit_logits": None},
            r"`edit_logits` gave None .*; allowed: a tensor of shape \(4, 3\), like the logits it gets",
        ),
        ({"edit_logits": lambda logits: logits[:, :2]}, r"`edit_logits` gave a tensor of shape \(4, 2\)"),
        ({"add_loss": 0.5}, r"`add_loss` gave 0.5 \(of type float\); allowed: a tensor of one number, or None"),
        (
            {"add_loss": lambda batch: batch.each},
            r"`add_loss` gave a tensor of shape \(4,\).*; allowed: a tensor of one",
        ),
        ({"finish": None}, r"`finish` gave None .*; allowed: Done\(metrics=..., aggregated=..., client_state=...\)"),
        ({"finish": lambda own, buf: {"x": 1}}, r"`finish` gave \{'x': 1\} \(of type dict\); allowed: Done"),
        (
            {"finish": lambda own, buf: Done(client_state={"n": 3})},
            r"`finish` gave 3 .* as 'n'; allowed: Done\(client_state=...\)",
        ),
        ({"declare_slots": None}, r"`declare_slots` gave None .*; allowed: names and slots"),
        (
            {"declare_slots": lambda space: {"v": (3,)}},
            r"`declare_slots` declares \(3,\) .* as 'v'; allowed: names and slots",
        ),
        (
            {"declare_aggregated": lambda space: {"a/b": Slot()}},
            r"`declare_aggregated` declares .* as 'a/b'; allowed: .*without a slash",
        ),
        (
            {"declare_client_state": lambda space: Slot()},
            r"`declare_client_state` gave Slot.*; allowed: names and slots",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_local_part_gives_is_checked(gives, hooks, said):
    gives(**hooks)
    with pytest.raises(PartError, match=f"OddPart: {said}"):
        train_one({"method.corrections": [OddPart()]})


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"observe": "v"}, r"`observe` uses 'v', which is not there. `own`, as `declare_slots` declares it: sum"),
        (
            {"edit_gradient": "v"},
            r"`edit_gradient` uses 'v', which is not there. `own`, as `declare_slots` declares it: sum",
        ),
        (
            {"kept": "c"},
            r"`finish` uses 'c', which is not there. .*as `declare_client_state` declares it: noth.*params",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_slot_that_was_not_declared_is_named(gives, hooks, said):
    gives(declare_slots=lambda space: {"sum": Slot()}, **hooks)
    with pytest.raises(PartError, match=f"OddPart: {said}"):
        train_one({"method.corrections": [OddPart()]})


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        (
            {"edited": lambda buf: buf.g * 0.5},
            r"`edit_gradient` gave a tensor of shape \(43,\) .*: nothing. .*g.mul_",
        ),
        ({"observed": {"sum": 1.0}}, r"`observe` gave \{'sum': 1.0\} .*allowed: nothing. Write into a slot: own"),
        ({"fill": {}}, r"`fill` gave \{\} .*allowed: nothing. Write into the slots: own\[...\].copy_"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_hook_that_writes_in_place_gives_nothing(gives, hooks, said, at_once):
    gives(**hooks)
    with pytest.raises(PartError, match=f"OddPart: {said}"):
        train_one({"method.corrections": [OddPart()]}, at_once)


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        (
            {"edit_gradient": "v"},
            r"`edit_gradient` puts shapes together that do not fit: The size of tensor a \(43\) .*\(10\).* There are: "
            r'own\["v"\] \(10,\), as `declare_slots` declares it; weights and gradient \(43,\), as Slot\(\(space.P',
        ),
        ({"fill": lambda own, buf, context: own["v"].copy_(buf.w0)}, r'`fill` puts shapes .*: own\["v"\] \(10,\)'),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_slot_of_the_wrong_shape_is_named(gives, hooks, said, at_once):
    gives(declare_slots=lambda space: {"v": Slot((10,))}, **hooks)
    with pytest.raises(PartError, match=f"OddPart: {said}"):
        train_one({"method.corrections": [OddPart()]}, at_once)


def test_another_runtime_error_stays_what_it_is(gives):
    def fails(buf):
        raise RuntimeError("mine")

    gives(edited=fails)
    with pytest.raises(RuntimeError, match=r"\Amine\Z"):
        train_one({"method.corrections": [OddPart()]})


@dataclass(frozen=True)
class GivesWeights(Optimizer):
    """Gives new weights instead of moving those that are there."""

    def step(self, own, w, g, rate):
        return w - rate * g


def test_an_optimizer_that_gives_weights_is_told_to_move_them():
    with pytest.raises(PartError, match=r"GivesWeights: `step` gave a tensor .*: nothing. Move `w` in place: w.sub_"):
        train_one({"train.optimizer": GivesWeights()})


@dataclass(frozen=True)
class ForgetsItsSlot(Optimizer):
    """Momentum without a slot for it."""

    def step(self, own, w, g, rate):
        w.sub_(rate * own["v"].mul_(0.9).add_(g))


def test_an_optimizer_without_its_slot_is_named():
    with pytest.raises(
        PartError, match=r"ForgetsItsSlot: `step` uses 'v', .*`own`, as `declare_memory` declares it: nothing"
    ):
        train_one({"train.optimizer": ForgetsItsSlot()})


def test_another_missing_key_stays_what_it_is(gives):
    gives(add_loss=lambda batch: {}["mine"], declare_slots=lambda space: {"mine": Slot()})
    with pytest.raises(KeyError, match="mine"):
        train_one({"method.corrections": [OddPart()]})


@pytest.mark.parametrize("slot", [lambda: Slot(5), lambda: Slot([5]), lambda: Slot((5,), float)])
def test_a_slot_has_a_shape(slot):
    with pytest.raises(ValueError, match=r"a slot has a shape, such as \(10,\), and a dtype of torch; Slot\(\) is one"):
        slot()


@dataclass(frozen=True)
class OddSampler(Sampler):
    """A sampler whose plan is told from outside."""

    def plan(self, context):
        return given("plan", lambda: None, context.client.samples)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (None, r"OddSampler: `plan` gave None .*; allowed: Order\(epochs, batch_size\)"),
        (np.arange(3), r"OddSampler: `plan` gave an array of shape \(3,\)"),
        (lambda n: Order((np.array([0, -1]),), 2), r"OddSampler: `plan` names sample -1; allowed: 0 to 9"),
        (lambda n: Order((np.arange(n + 1),), 4), r"OddSampler: `plan` names sample 10; allowed: 0 to 9"),
        (lambda n: Order((np.arange(n),), 8), r"OddSampler: `plan` makes a batch of 8 .*at most 4, as `width` says"),
    ],
    ids=["nothing", "an array", "before the first", "after the last", "too wide"],
)
def test_what_a_sampler_plans_is_checked(gives, plan, said):
    gives(plan=plan)
    with pytest.raises(PartError, match=said):
        train_one({"method.sampler": OddSampler()})


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (lambda: Order(np.arange(4), 2), "epochs is a tuple with one array of positions for every epoch.*not ndarray"),
        (lambda: Order((np.ones(4, dtype=bool),), 2), "positions are whole numbers from 0, not bool; of a mask"),
        (lambda: Order((np.linspace(0, 1, 3),), 2), "positions are whole numbers from 0, not float64"),
        (lambda: Order((np.zeros((2, 2), dtype=int),), 2), "an epoch is a row of positions"),
        (lambda: Order((np.arange(4),), 0), "batch_size = 0; allowed: a whole number from 1"),
    ],
)
def test_an_order_is_made_of_positions(order, said):
    with pytest.raises(ValueError, match=f"Order: .*{said}|Order: {said}"):
        order()
    assert Order(([2, 0],), 2).epochs[0].tolist() == [2, 0]
    assert Order((np.array([]),), 2).epochs[0].dtype == np.int64


# ---- schedules -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OddRate(LRSchedule):
    """A learning-rate schedule whose factor is told from outside."""

    def factor(self, round, rounds, unit=1.0):
        return given("factor", lambda: 1.0)


@pytest.mark.parametrize("factor", [None, float("nan"), -0.5, "0.1"], ids=str)
def test_what_a_learning_rate_schedule_gives_is_checked(gives, factor):
    gives(factor=factor)
    with pytest.raises(PartError, match=r"OddRate: `factor` gave .* in round 1; allowed: a finite number from 0"):
        run_rounds(session_of({"train.lr_schedule": OddRate()}), 1)


@dataclass(frozen=True)
class OddSchedule(Stratified):
    """A label schedule whose frequencies are told from outside."""

    def frequencies(self, totals):
        return given("frequencies", lambda: totals, totals)

    def epoch(self, number, view):
        return given("epoch", lambda: super(OddSchedule, self).epoch(number, view))


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"frequencies": [5, 5, 5]}, r"`frequencies` gave \[5, 5, 5\] \(of type list\); allowed: a whole number"),
        ({"frequencies": np.array([0.5, 0.25, 0.25])}, r"`frequencies` gave an array .*float64; allowed: a whole"),
        ({"frequencies": np.array([5, 5])}, r"`frequencies` gave an array of shape \(2,\).*each of the 3 strata"),
        ({"frequencies": np.array([5, -1, 5])}, r"`frequencies` gave \[5, -1, 5\] for strata of"),
        ({"epoch": None}, r"`epoch` gave None .*; allowed: an Epoch"),
    ],
    ids=["a list", "shares", "too few", "negative", "no epoch"],
)
def test_what_a_label_schedule_gives_is_checked(gives, hooks, said):
    gives(**hooks)
    with pytest.raises(PartError, match=f"OddSchedule: {said}"):
        run_rounds(session_of({"method.schedule": OddSchedule(), "method.driver": "chain"}), 1)


@dataclass(frozen=True)
class NobodyFollows(Schedule):
    """Derives from what has no sampler."""


@dataclass(frozen=True)
class Unfollowed(Schedule):
    """Has a sampler, but no driver knows how to follow it."""

    @property
    def sampler(self):
        return OddSampler()


def test_a_schedule_that_nothing_follows_is_refused_instead_of_ignored():
    with pytest.raises(PartError, match=r"NobodyFollows: `sampler` is None, .*derive it from Stratified"):
        session_of({"method.schedule": NobodyFollows()})
    with pytest.raises(RequestError, match="Unfollowed cannot be followed; derive it from Stratified"):
        session_of({"method.schedule": Unfollowed(), "method.driver": "chain"})


# ---- as a user sees it ----------------------------------------------------------------------------------------------


def test_the_command_line_says_whose_update_it_was(cli, gives):
    gives(finish=None)
    args = ["--set", f"method.corrections=['{OddPart.__module__}:OddPart']", "--set", "train.rounds=1", "--quiet"]
    code, _, err = cli("run", *args)
    assert code == 1
    assert "error: OddPart: `finish` gave None" in err
    assert "while client" in err

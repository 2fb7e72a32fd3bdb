"""Broken parts do not pass the suites that users run on parts of their own, sound ones do.

The broken parts stand at module level: experiments name parts by import path.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from fedstrata import testing
from fedstrata.core.client_context import Done
from fedstrata.core.client_parts import Correction, Optimizer, Order
from fedstrata.core.errors import PartError
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Slot
from fedstrata.core.sampler import Sampler
from fedstrata.core.server_parts import Combiner, Driver, Selector, ServerStep
from fedstrata.core.steps import Step
from fedstrata.data.partitions.base import Deal, Partition
from fedstrata.methods.optimizers.sgd import Sgd
from fedstrata.models.architecture import Architecture
from fedstrata.testing import WireEngine
from fedstrata.testing.conformance import check_part
from fedstrata.testing.tiny import in_process, run_rounds, same, session_of

# ---- local parts that must be caught ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Floats(Correction):
    """Reads the loss on the host."""

    def add_loss(self, own, buf, batch):
        return batch.logits.sum() * 0.0 * float(batch.each.detach().sum())


@dataclass(frozen=True)
class Masks(Correction):
    """Picks samples by a boolean mask, whose shape depends on data."""

    def add_loss(self, own, buf, batch):
        return (batch.each * batch.weight)[batch.y == 0].sum()


@dataclass(frozen=True)
class Branches(Correction):
    """Does something else in the first step."""

    def fill(self, own, buf, context):
        object.__setattr__(self, "seen", 0)

    def edit_gradient(self, own, buf, rate):
        if self.seen == 0:
            buf.g.mul_(0.5)
        object.__setattr__(self, "seen", self.seen + 1)


@dataclass(frozen=True)
class Remembers(Optimizer):
    """Momentum that is not cleared between clients."""

    def declare_memory(self, space):
        return {"v": Slot((space.P,))}

    def fill(self, own, buf, context):
        pass

    def step(self, own, w, g, rate):
        w.sub_(rate * own["v"].mul_(0.9).add_(g))


@dataclass(frozen=True)
class Reallocates(Correction):
    """Puts a new tensor in the place of the trainer's weights."""

    def edit_gradient(self, own, buf, rate):
        buf.w = buf.w - rate * buf.g


@dataclass(frozen=True)
class CountsPadding(Correction):
    """Adds a term over all rows of a batch, padding included."""

    def add_loss(self, own, buf, batch):
        return 0.1 * batch.each.mean()


@dataclass(frozen=True)
class SendsUndeclared(Correction):
    """Sends what it did not declare."""

    def finish(self, own, buf, context):
        return Done(aggregated={"secret": buf.w.clone()})


@dataclass(frozen=True)
class KeepsUndeclared(Correction):
    """Keeps what it did not declare."""

    def finish(self, own, buf, context):
        return Done(client_state={"secret": buf.w.clone()})


@dataclass(frozen=True)
class SendsLess(Correction):
    """Declares what it does not send."""

    def declare_aggregated(self, space):
        return {"missing": Slot((space.P,))}


@dataclass(frozen=True)
class MeterThatRemembers(Correction):
    """Reports a number that still holds what the client before left."""

    def declare_slots(self, space):
        return {"sum": Slot()}

    def observe(self, own, buf, batch):
        own["sum"].add_((batch.each * batch.weight).sum())

    def finish(self, own, buf, context):
        return Done(metrics={"sum": own["sum"].clone()})


@dataclass(frozen=True)
class MeterThatCountsPadding(MeterThatRemembers):
    """Reports a number to which padding was added."""

    def fill(self, own, buf, context):
        own["sum"].zero_()

    def observe(self, own, buf, batch):
        own["sum"].add_(batch.each.sum())


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Floats(), "reads the device from the host"),
        (Masks(), "reads the device from the host"),
        (Branches(), "not the same for every batch"),
        (CountsPadding(), "padding changed update"),
        (SendsUndeclared(), "`declare_aggregated` declares"),
        (KeepsUndeclared(), "`declare_client_state` declares"),
        (SendsLess(), "`declare_aggregated` declares"),
        (MeterThatRemembers(), "depends on the client before"),
        (MeterThatCountsPadding(), "padding changed sum"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_broken_local_part_is_caught(part, said):
    with pytest.raises(AssertionError, match=said):
        testing.check_correction(part)


@pytest.mark.parametrize(
    ("part", "said"),
    [(Remembers(), "depends on the client before"), (Reallocates(), "moved its buffers")],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_broken_optimizer_is_caught(part, said):
    with pytest.raises(AssertionError, match=said):
        testing.check_correction(part, optimizer=True)


def test_a_slot_that_is_not_cleared_breaks_the_equality_of_engines():
    asked = {"train.optimizer": Remembers()}
    here, there = (
        run_rounds(session_of(asked))[0],
        run_rounds(session_of(asked), engine=lambda w: WireEngine(w.plan.local, w.federation))[0],
    )
    assert not same(here, there)
    clean = {"train.optimizer": Sgd(momentum=0.9)}
    here, there = (
        run_rounds(session_of(clean))[0],
        run_rounds(session_of(clean), engine=lambda w: WireEngine(w.plan.local, w.federation))[0],
    )
    assert same(here, there)


# ---- local parts that are right --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GivesItsOwnBuffers(Correction):
    """Gives back the trainer's own buffers: its last weights to sum, and the weights it received to keep."""

    def declare_slots(self, space):
        return {"last": Slot((space.P,)), "sum": Slot()}

    def declare_aggregated(self, space):
        return {"last": Slot((space.P,))}

    def declare_client_state(self, space):
        return {"last": Slot((space.P,))}

    def fill(self, own, buf, context):
        own["last"].copy_(context.client_state["last"])
        own["sum"].zero_()

    def edit_gradient(self, own, buf, rate):
        buf.g.add_(own["last"], alpha=0.01)

    def observe(self, own, buf, batch):
        own["sum"].add_((batch.each * batch.weight).sum())

    def finish(self, own, buf, context):
        own["last"].copy_(buf.w)
        return Done(aggregated={"last": own["last"]}, client_state={"last": buf.w})


@dataclass(frozen=True)
class ReportsItsOwnBuffer(GivesItsOwnBuffers):
    """Gives back an open number that is the trainer's own buffer."""

    def finish(self, own, buf, context):
        return replace(super().finish(own, buf, context), metrics={"sum": own["sum"]})


@dataclass(frozen=True)
class Shows(Correction):
    """Shows the server the update of the head."""

    def finish(self, own, buf, context):
        return Done(open_tensors={"head": (buf.w - buf.w0)[buf.head]})


@dataclass(frozen=True)
class Meter(MeterThatRemembers):
    """Reports the sum of the losses, cleared and without padding."""

    def fill(self, own, buf, context):
        own["sum"].zero_()


@pytest.mark.parametrize("part", [GivesItsOwnBuffers(), Meter(), Shows()], ids=lambda part: type(part).__name__)
def test_a_sound_local_part_passes(part):
    testing.check_correction(part)


@pytest.mark.parametrize("part", [GivesItsOwnBuffers(), ReportsItsOwnBuffer()], ids=lambda part: type(part).__name__)
def test_giving_back_the_trainers_own_buffers_is_harmless(part):
    """The worker copies what leaves it, or every client would hold the last client's numbers."""
    asked = {"method.corrections": [part], "train.clients_per_round": "all"}
    here, there = session_of(asked), session_of(asked)
    (one, seen), (other, told) = (
        run_rounds(here),
        run_rounds(there, engine=lambda w: WireEngine(w.plan.local, w.federation)),
    )
    assert same(one, other)
    assert seen == told


def test_kept_tensors_differ_between_clients():
    work = session_of({"method.corrections": [GivesItsOwnBuffers()], "train.clients_per_round": "all"})
    engine = in_process(work)
    run_rounds(work, 1, engine=lambda _: engine)
    kept = [client_state["GivesItsOwnBuffers/last"] for _, client_state in engine.client_states().values()]
    assert len(kept) == 6
    assert len({tuple(k.tolist()) for k in kept}) == 6


# ---- selectors and drivers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Duplicates(Selector):
    """Selects a client twice."""

    def select(self, state, view):
        return [0, 1, 1]


@dataclass(frozen=True)
class Nobody(Selector):
    """Selects nobody."""

    def select(self, state, view):
        return []


@dataclass(frozen=True)
class HidesState(Selector):
    """Counts its rounds in the object instead of in the state."""

    def select(self, state, view):
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        return [self.calls % 6, (self.calls + 1) % 6]


@dataclass
class Calls:
    number: int = 0
    seen: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class KeepsState(Selector):
    """Counts its rounds in the state."""

    def init(self, view):
        return Calls()

    def select(self, state, view):
        state.number += 1
        return [state.number % 6, (state.number + 1) % 6]

    def feedback(self, state, view, outcomes, scores):
        state.seen += [r.client for o in outcomes for r in o.reports]


@dataclass(frozen=True)
class DrawsGlobally(Selector):
    """Draws from numpy's global generator."""

    def select(self, state, view):
        return np.random.choice(view.eligible, view.k, replace=False)  # noqa: NPY002  that is the point


GLOBAL = []


@dataclass(frozen=True)
class CountsGlobally(Selector):
    """Counts rounds of all runs in a global variable."""

    def select(self, state, view):
        GLOBAL.append(view.round)
        return [len(GLOBAL) % 6]


@dataclass(frozen=True)
class LooksAhead(Selector):
    """Asks whoever it would have asked in the last round."""

    def select(self, state, view):
        return [view.rounds % 6]


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (LooksAhead(), "a run of more rounds begins otherwise"),
        (Duplicates(), "asks a client twice"),
        (Nobody(), "no client was selected"),
        (HidesState(), "resumed run differs"),
        (DrawsGlobally(), "the same run twice"),
        (CountsGlobally(), "the same run twice"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_broken_selector_is_caught(selector, said):
    np.random.seed(0)  # noqa: NPY002  the broken one draws there
    with pytest.raises((AssertionError, ValueError), match=said):
        testing.check_selector(selector)


def test_a_sound_selector_with_state_passes():
    testing.check_selector(KeepsState())


@dataclass(frozen=True)
class NeedsAll(Driver):
    """Fails when a report is missing."""

    def round(self, state, view, select):
        asks = yield from select()
        outcome = yield Step(tuple(asks))
        assert not outcome.missing, "a report is missing"


def test_a_driver_that_cannot_do_without_a_report_is_caught():
    with pytest.raises(AssertionError, match="a report is missing"):
        testing.check_driver(NeedsAll())


# ---- samplers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutOfRange(Sampler):
    """Names a sample that the client does not have."""

    beyond: bool = False

    def plan(self, context):
        n = context.client.samples
        return Order((np.append(np.arange(n - 1), n if self.beyond else -1),), context.batch_size)


@dataclass(frozen=True)
class DrawsAfresh(Sampler):
    """Shuffles with a generator of its own, without a seed."""

    def plan(self, context):
        n = context.client.samples
        return Order((np.random.default_rng().permutation(n),), batch_size=2)


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (OutOfRange(), "out of range"),
        (OutOfRange(beyond=True), "out of range"),
        (DrawsAfresh(), "the same run twice"),
    ],
    ids=["before the first", "after the last", "without a seed"],
)
def test_a_broken_sampler_is_caught(sampler, said):
    with pytest.raises(AssertionError, match=said):
        testing.check_sampler(sampler)


# ---- combiners, server steps, partitions, models --------------------------------------------------------------------


@dataclass(frozen=True)
class NotNormalised(Combiner):
    """Weighs by size without dividing by the sum."""

    def combine(self, state, view, model, arrived):
        return arrived.sum([0.1 * r.samples for r in arrived.reports])


def test_weights_that_do_not_sum_to_one_are_caught():
    with pytest.raises(AssertionError, match=r"the combination is off by 0\.2$"):  # .1 + .2 + .5 = .8
        testing.check_combiner(NotNormalised())


@dataclass(frozen=True)
class HiddenVelocity(ServerStep):
    """Keeps momentum in the object instead of in the state."""

    def step(self, state, view, model, proposal, sums):
        velocity = 0.9 * getattr(self, "v", 0.0) + proposal.params - model.params
        object.__setattr__(self, "v", velocity)
        return FlatModel(model.params + velocity, proposal.buffers)


def test_a_server_step_with_hidden_state_is_caught():
    with pytest.raises(AssertionError, match="resumed run differs"):
        testing.check_server_step(HiddenVelocity())


@dataclass(frozen=True)
class DealsTwice(Partition):
    """Deals the first sample to everybody."""

    def split(self, labels, test_labels, clients, rng):
        train = [np.append(part[part > 0], 0) for part in np.array_split(np.arange(len(labels)), clients)]
        return Deal(train, np.array_split(np.arange(len(test_labels)), clients))


@dataclass(frozen=True)
class DealsDifferently(Partition):
    """Deals with a generator of its own."""

    def split(self, labels, test_labels, clients, rng):
        order = np.random.default_rng().permutation(len(labels))
        return Deal(np.array_split(order, clients), np.array_split(np.arange(len(test_labels)), clients))


@pytest.mark.parametrize(
    ("partition", "said"), [(DealsTwice(), "dealt twice"), (DealsDifferently(), "gave another deal")]
)
def test_a_broken_partition_is_caught(partition, said):
    with pytest.raises((AssertionError, PartError), match=said):
        testing.check_partition(partition)


@dataclass(frozen=True)
class NamedOtherwise(Architecture):
    """Calls its last layer something else."""

    def build(self, shape, classes):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(int(np.prod(shape)), classes))


def test_a_model_whose_last_layer_is_not_called_head_is_caught():
    with pytest.raises(AssertionError, match="not 'head'"):
        testing.check_model(NamedOtherwise())


# ---- what every part has in common -----------------------------------------------------------------------------------


@dataclass
class Melted(Selector):
    """Not frozen."""


class Bare(Selector):
    """Not a dataclass."""


@pytest.mark.parametrize(("part", "said"), [(Melted(), "must be frozen"), (Bare(), "must be a dataclass")])
def test_a_part_that_is_no_frozen_dataclass_is_caught(part, said):
    with pytest.raises(AssertionError, match=said):
        check_part(part)

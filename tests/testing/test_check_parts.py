"""The suites name the part and the hook that went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedstrata.core.client_parts import Correction, Optimizer, Order
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Slot
from fedstrata.core.part import Part
from fedstrata.core.sampler import Sampler
from fedstrata.core.server_parts import Combiner, Driver, Schedule, Selector, ServerStep
from fedstrata.core.steps import Step
from fedstrata.methods.schedules.stratified import Stratified
from fedstrata.testing import (
    check_combiner,
    check_correction,
    check_driver,
    check_sampler,
    check_schedule,
    check_selector,
    check_server_step,
)


@dataclass(frozen=True)
class MovesACopy(Optimizer):
    """Gives the weights another name instead of changing them."""

    def step(self, own, w, g, rate):
        w = w - rate * g


def test_an_optimizer_that_moves_nothing_is_caught():
    with pytest.raises(AssertionError, match=r"MovesACopy: `move` leaves the weights where they were; .*w.sub_"):
        check_correction(MovesACopy(), optimizer=True)


@dataclass(frozen=True)
class AsksTheHost(Correction):
    """Decides on the host."""

    def edit_gradient(self, own, buf, rate):
        if buf.g.norm() > 1:
            buf.g.mul_(0.5)


def test_a_read_from_the_host_is_named_with_its_hook():
    said = r"reads the device from the host: AsksTheHost \(in `edit_gradient`\): _local_scalar_dense; .*torch.where"
    with pytest.raises(AssertionError, match=said):
        check_correction(AsksTheHost())


@dataclass(frozen=True)
class InPlace(ServerStep):
    """Changes the model that was sent."""

    def step(self, state, view, model, proposal, sums):
        model.params.copy_(proposal.params)
        return FlatModel(model.params, proposal.buffers)


def test_a_server_step_that_changes_the_old_model_is_caught():
    with pytest.raises(AssertionError, match="InPlace: `step` changes `model`; give a new Model"):
        check_server_step(InPlace())


@dataclass(frozen=True)
class Ignored(Schedule):
    """Would never be followed."""


def test_a_schedule_that_nothing_follows_is_caught():
    with pytest.raises(AssertionError, match="Ignored gives no `sampler`, so nothing follows it"):
        check_schedule(Ignored())


def test_global_generators_are_left_as_they_were():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    check_correction(Halves())
    assert torch.equal(torch.rand(3), expected)


@dataclass(frozen=True)
class Halves(Correction):
    """Halves the gradient."""

    def edit_gradient(self, own, buf, rate):
        buf.g.mul_(0.5)


# ---- what would be trained without, and nobody would see it ----------------------------------------------------------


@dataclass(frozen=True)
class DoesNothing(Correction):
    """Declares a slot, and has no hook that uses it."""

    def declare_slots(self, space):
        return {"v": Slot((space.P,))}

    def halve(self, own, buf, rate):
        buf.g.mul_(0.5)


def test_a_correction_without_a_hook_is_caught():
    with pytest.raises(AssertionError, match=r"DoesNothing does nothing: it has none of fill, .*edit_gradient, finish"):
        check_correction(DoesNothing())


@dataclass(frozen=True)
class MisspeltGradient(Correction):
    """Has a hook of another name."""

    def edit_gradients(self, own, buf, rate):
        buf.g.mul_(0.5)


@dataclass(frozen=True)
class MisspeltFeedback(Selector):
    """Would never learn."""

    def select(self, state, view):
        return view.eligible[: view.k].tolist()

    def feed_back(self, state, view, outcomes, scores):
        pass


@dataclass(frozen=True)
class MisspeltInit(ServerStep):
    """Would never remember."""

    def inits(self, view, model):
        pass


@dataclass(frozen=True)
class MisspeltWidth(Sampler):
    """Would never be asked how wide its batches are."""

    def plan(self, context):
        return Order((np.arange(context.client.samples),), context.batch_size)

    def widths(self, batch_size, largest, fastest=1.0):
        return batch_size


@dataclass(frozen=True)
class MisspeltWish(Combiner):
    """Would never get single updates."""

    individuals: ClassVar[bool] = True

    def combine(self, state, view, model, arrived):
        return arrived.sum(arrived.weights)


@dataclass(frozen=True)
class MisspeltTogether(Driver):
    """Would never be asked."""

    def round(self, state, view, select):
        asks = yield from select()
        yield Step(tuple(asks))

    @property
    def togehter(self):
        return False


@dataclass(frozen=True)
class MisspeltFrequencies(Stratified):
    """Would change no label's frequency."""

    def frequences(self, totals):
        return totals


@pytest.mark.parametrize(
    ("check", "part", "said"),
    [
        (check_correction, MisspeltGradient(), "`edit_gradients`; did you mean `edit_gradient`"),
        (check_selector, MisspeltFeedback(), "`feed_back`; did you mean `feedback`"),
        (check_server_step, MisspeltInit(), "`inits`; did you mean `init`"),
        (check_sampler, MisspeltWidth(), "`widths`; did you mean `width`"),
        (check_combiner, MisspeltWish(), "`individuals`; did you mean `individual`"),
        (check_driver, MisspeltTogether(), "`togehter`; did you mean `together`"),
        (check_schedule, MisspeltFrequencies(), "`frequences`; did you mean `frequencies`"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Part) else "",
)
def test_a_misspelt_hook_is_caught(check, part, said):
    with pytest.raises(AssertionError, match=rf"{type(part).__name__}: nothing calls {said}\?"):
        check(part)


@dataclass(frozen=True)
class HasHelpers(MisspeltFeedback):
    """Has a helper and an option whose names are near to a hook that is written too."""

    selected: int = 3  # an option

    def select(self, state, view):
        return self.selects(view)

    def selects(self, view):
        return view.eligible[: view.k].tolist()

    def feedback(self, state, view, outcomes, scores):
        pass


def test_helpers_and_options_are_no_misspelt_hooks():
    check_selector(HasHelpers())


@dataclass(frozen=True)
class NotANumber(Correction):
    """Divides by nothing."""

    def edit_gradient(self, own, buf, rate):
        buf.g.div_(0)


def test_numbers_that_are_not_finite_are_not_taken_for_what_a_client_left():
    with pytest.raises(AssertionError, match=r"NotANumber: update is not finite after one client update; .*division"):
        check_correction(NotANumber())


def test_a_class_in_place_of_an_object_is_told_so():
    with pytest.raises(AssertionError, match=r"HasHelpers is a class; give an object of it: HasHelpers\(\)"):
        check_selector(HasHelpers)

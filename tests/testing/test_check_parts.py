"""The suites name the part and the hook that went wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedstrata.core.client_parts import Correction, Optimizer
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.server_parts import Schedule, ServerStep
from fedstrata.testing import check_correction, check_schedule, check_server_step


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
    check_correction(LocalPartThatDoesNothing())
    assert torch.equal(torch.rand(3), expected)


@dataclass(frozen=True)
class LocalPartThatDoesNothing(Correction):
    """Does nothing."""

"""A part at the server that reads a number of a report without naming it does not pass, wherever it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import pytest

from fedstrata import testing
from fedstrata.core.client_context import Done
from fedstrata.core.client_parts import Correction
from fedstrata.core.server_parts import Combiner, Driver, Selector, ServerStep
from fedstrata.core.steps import Ask, Step
from fedstrata.methods.corrections.prox import Prox


@dataclass(frozen=True)
class Tells(Correction):
    """Tells a number."""

    def finish(self, own, buf, context):
        return Done(metrics={"told": 1.0})


@dataclass(frozen=True)
class Meters:
    """What the parts below have in common: they want the number, and may name it."""

    names: tuple[str, ...] = ()

    def meters(self, others):
        return (Tells(),)

    def metrics_read(self, kind):
        return self.names if kind == "train" else ()


@dataclass(frozen=True)
class ReadsInCombine(Meters, Combiner):
    """Weighs by the number."""

    def combine(self, state, view, model, arrived):
        total = sum(r.metrics["told"] for r in arrived.reports)
        return arrived.sum([r.metrics["told"] / total for r in arrived.reports])


@dataclass(frozen=True)
class ReadsInStep(Meters, ServerStep):
    """Looks whether the number is there."""

    def step(self, state, view, model, proposal, sums):
        assert all("told" in r.metrics for r in sums.reports)
        return proposal


@dataclass(frozen=True)
class ReadsInRound(Meters, Driver):
    """Looks for the number, carefully."""

    def round(self, state, view, select):
        asks = yield from select()
        outcome = yield Step(tuple(asks))
        assert all(r.metrics.get("told", 1.0) == 1.0 for r in outcome.reports)


@dataclass(frozen=True)
class ReadsInFeedback(Meters, Selector):
    """Reads the number afterwards."""

    def select(self, state, view):
        return view.eligible[: view.k].tolist()

    def feedback(self, state, view, outcomes, scores):
        assert all(r.metrics["told"] == 1.0 for o in outcomes for r in o.reports)


@dataclass(frozen=True)
class ReadsProbes(Selector):
    """Reads what a probe tells, and names it for training."""

    programs: ClassVar[Mapping] = MappingProxyType({"tell": lambda context: Done(metrics={"told": 1.0})})

    def metrics_read(self, kind):
        return ("told",) if kind == "train" else ()

    def select(self, state, view):
        probe = yield Step(tuple(Ask(int(i)) for i in view.eligible), kind="tell", combine=False)
        return [r.client for r in probe.reports if r.metrics["told"]][: view.k]


CHECKS = {
    ReadsInCombine: testing.check_combiner,
    ReadsInStep: testing.check_server_step,
    ReadsInRound: testing.check_driver,
    ReadsInFeedback: testing.check_selector,
}


@pytest.mark.parametrize("kind", CHECKS, ids=lambda kind: kind.__name__)
def test_a_number_that_is_read_and_not_named_is_caught(kind):
    with pytest.raises(AssertionError, match=rf'{kind.__name__}: .* reads metrics\["told"\] of a "train" report'):
        CHECKS[kind](kind())


@pytest.mark.parametrize("kind", [ReadsInCombine, ReadsInFeedback], ids=lambda kind: kind.__name__)
def test_a_number_that_is_named_may_be_read(kind):
    CHECKS[kind](kind(("told",)))


def test_a_number_is_named_for_the_kind_of_step_in_which_it_is_told():
    with pytest.raises(AssertionError, match=r'ReadsProbes: `select` reads metrics\["told"\] of a "tell" report'):
        testing.check_selector(ReadsProbes())


@dataclass(frozen=True)
class Forgetful(Prox):
    """FedPBS as it was: variances are read, and not named."""

    def metrics_read(self, kind):
        return ()


def test_the_server_half_of_a_correction_is_looked_at_too():
    with pytest.raises(AssertionError, match=r'Forgetful: `step` reads metrics\["loss_variance"\]'):
        testing.check_correction(Forgetful(when="unstable"))

"""A driver or selector that does what it may not is told so, by name; those written the short way work with all others.

Broken parts stand at module level: experiments name parts by import path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedstrata.core.errors import PartError
from fedstrata.core.server_parts import Driver, Selector
from fedstrata.core.steps import Ask, Step, drive_round, pick_asks, select_asks
from fedstrata.testing import check_driver
from fedstrata.testing.tiny import run_rounds, session_of

# ---- drivers that forget ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AsIfIds(Driver):
    """Takes what `select` gives for a list of ids."""

    def round(self, state, view, select):
        yield Step(tuple(Ask(client) for client in select()))


@dataclass(frozen=True)
class AsIfAsks(Driver):
    """Takes what `select` gives for a list of asks."""

    def round(self, state, view, select):
        yield Step(tuple(select()))


@dataclass(frozen=True)
class ReadsAsks(Driver):
    """Reads the asks one by one."""

    def round(self, state, view, select):
        yield Step(tuple(Ask(ask.client, weight=ask.weight) for ask in select()))


@dataclass(frozen=True)
class CountsFirst(Driver):
    """Wants to know how many there are."""

    def round(self, state, view, select):
        asks = select()
        for at in range(len(asks)):
            yield Step((asks[at],))


@dataclass(frozen=True)
class TakesTheFirst(Driver):
    """Takes one of them."""

    def round(self, state, view, select):
        yield Step((select()[0],))


@dataclass(frozen=True)
class YieldsWithoutFrom(Driver):
    """Writes `yield` where `yield from` belongs."""

    def round(self, state, view, select):
        asks = yield select()
        yield Step(tuple(asks))


@dataclass(frozen=True)
class GivesThemAsTheyAre(Driver):
    """Hands over what it got."""

    def round(self, state, view, select):
        yield Step(select())


@dataclass(frozen=True)
class RunsThemItself(Driver):
    """Passes steps on by hand, and the answers not at all."""

    def round(self, state, view, select):
        for step in select():  # noqa: UP028  that is the point
            yield step


FORGETFUL = (
    AsIfIds(),
    AsIfAsks(),
    ReadsAsks(),
    CountsFirst(),
    TakesTheFirst(),
    YieldsWithoutFrom(),
    GivesThemAsTheyAre(),
    RunsThemItself(),
)


@pytest.mark.parametrize("driver", FORGETFUL, ids=lambda driver: type(driver).__name__)
@pytest.mark.parametrize("select", ["random", "flips", "power-of-choice"])
def test_a_driver_that_forgets_to_yield_from_is_told_so(driver, select):
    with pytest.raises(PartError, match=rf"{type(driver).__name__}: `round` .*yield from"):
        run_rounds(session_of({"method.driver": driver, "method.selector": select}), 1)


@pytest.mark.parametrize("driver", FORGETFUL, ids=lambda driver: type(driver).__name__)
def test_the_suite_catches_it(driver):
    with pytest.raises(PartError, match="yield from"):
        check_driver(driver)


@dataclass(frozen=True)
class ReturnsSteps(Driver):
    """Is no generator."""

    def round(self, state, view, select):
        return [Step((Ask(0),))]


@dataclass(frozen=True)
class YieldsAsks(Driver):
    """Yields what is no step."""

    def round(self, state, view, select):
        asks = yield from select()
        yield asks


@dataclass(frozen=True)
class AsksAStranger(Driver):
    """Asks a client that does not exist."""

    def round(self, state, view, select):
        yield Step((Ask(6),))


@dataclass(frozen=True)
class UnknownKind(Driver):
    """Has clients run a program that nobody wrote."""

    def round(self, state, view, select):
        asks = yield from select()
        yield Step(tuple(asks), kind="probe-los", combine=False)


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (ReturnsSteps(), r"ReturnsSteps: `round` gave .*; allowed: a generator"),
        (YieldsAsks(), r"YieldsAsks: `round` yielded .*; allowed: `Step`"),
        (AsksAStranger(), r"AsksAStranger: `round` asks client 6; there are 0 to 5"),
        (UnknownKind(), r"no part has a program \"probe-los\"; a step's kind is \"train\""),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_driver_that_yields_something_else_is_told_what_is_allowed(driver, said):
    with pytest.raises(PartError, match=said):
        run_rounds(session_of({"method.driver": driver}), 1)


@dataclass(frozen=True)
class Pairs(Driver):
    """Two clients at a time, as a reader of the documentation would write it."""

    def round(self, state, view, select):
        asks = yield from select()
        for first in range(0, len(asks), 2):
            yield Step(tuple(asks[first : first + 2]))


@dataclass(frozen=True)
class LosesConfigs(Driver):
    """Asks the selected clients, but not for what the selector wanted."""

    def round(self, state, view, select):
        asks = yield from select()
        yield Step(tuple(Ask(ask.client) for ask in asks))


@dataclass(frozen=True)
class AddsToConfigs(Driver):
    """Asks for something more."""

    def round(self, state, view, select):
        asks = yield from select()
        yield Step(tuple(replace(ask, config={**ask.config, "more": 1}) for ask in asks))


@dataclass(frozen=True)
class WantsSome(Driver):
    """Cannot do without clients."""

    def round(self, state, view, select):
        asks = yield from select()
        yield Step((asks[0],))


def test_a_driver_written_the_short_way_passes():
    check_driver(Pairs())
    check_driver(AddsToConfigs())


@pytest.mark.parametrize("select", ["random", "flips", "power-of-choice", "oort", "tifl", "everyone"])
def test_and_works_with_selectors_of_every_kind(select):
    state, rounds = run_rounds(session_of({"method.driver": Pairs(), "method.selector": select}), 2)
    assert torch.isfinite(state.model.params).all()
    assert all(len(o.step.asks) <= 2 for outcomes in rounds for o in outcomes if o.step.combine)


def test_a_driver_that_loses_what_the_selector_asked_for_is_caught():
    with pytest.raises(AssertionError, match=r"LosesConfigs asks .*pass the `Ask`s of `select` on"):
        check_driver(LosesConfigs())


def test_a_driver_that_cannot_do_without_clients_is_caught():
    with pytest.raises(IndexError):
        check_driver(WantsSome())


# ---- what select gives -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gives(Selector):
    """Gives whatever it is told to give."""

    def select(self, state, view):
        return state


@dataclass(frozen=True)
class Probes(Selector):
    """Yields whatever it is told to yield."""

    def select(self, state, view):
        yield state
        return [0]


def finish_choice(choice, how=select_asks):
    """Let a selector finish that does not probe."""
    work = session_of()
    view = replace(work.plan.view(work.client_info, 0, lambda *_, **__: None), eligible=np.array([0, 1, 2, 4, 5]))
    with pytest.raises(StopIteration) as end:
        next(how(Gives(), choice, view))
    return end.value.value


@pytest.mark.parametrize("choice", [[4, 1], (4, 1), np.array([4, 1]), torch.tensor([4, 1]), {4, 1}, [Ask(4), 1]])
def test_ids_and_asks_in_any_sequence_become_asks_in_order_of_id(choice):
    assert finish_choice(choice) == [Ask(1), Ask(4)]
    assert all(type(ask.client) is int for ask in finish_choice(choice))


def test_asks_come_as_they_were_given():
    asks = [Ask(5, {"epochs": 3}, weight=2.0, chance=0.1), Ask(0)]
    assert finish_choice(asks) == asks[::-1]
    assert finish_choice(asks, pick_asks) == asks


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (None, r"gave None \(is a `return` missing\?\); allowed: client ids or `Ask`s"),
        (3, r"gave 3 \(of type int\); allowed"),
        ("012", r"gave '012' \(of type str\)"),
        ({1: 0.5}, r"gave {1: 0.5} \(of type dict\)"),
        ([1.0, 2.0], r"chose 1.0 \(of type float\); allowed: client ids"),
        (np.array([[1, 2]]), r"chose an array of shape \(2,\) and type int64"),
        (np.ones(6, dtype=bool), r"chose .*True.*; allowed: client ids"),
        ([1, 6], "chose client 6; there are 0 to 5"),
        ([-1], "chose client -1; there are 0 to 5"),
        ([1, 3], "chose client 3, which is not there; allowed: ids of `view.eligible`"),
        ([1, Ask(1)], r"asks a client twice: \[1, 1\]"),
    ],
    ids=str,
)
def test_anything_else_is_refused_by_name(choice, said):
    with pytest.raises(PartError, match=f"Gives: `select` {said}"):
        finish_choice(choice)


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (Ask(1), r"yielded Ask\(client=1.*; allowed: `Step`"),
        (Step((Ask(9),), combine=False), "asks client 9; there are 0 to 5"),
        (iter(()), "yielded .*; allowed: `Step`"),
        ((step for step in ()), "yields a generator where it must yield from it; write `yield from`"),
    ],
    ids=["an ask", "a stranger", "an iterator", "a generator"],
)
def test_a_probe_is_a_step(probe, said):
    work = session_of()
    view = work.plan.view(work.client_info, 0, lambda *_, **__: None)
    with pytest.raises(PartError, match=f"Probes: `select` {said}"):
        next(drive_round(Pairs(), None, view, Probes(), probe))


# ---- asks and steps --------------------------------------------------------------------------------------------------


def test_a_client_of_an_ask_is_a_plain_number():
    assert type(Ask(np.int64(3)).client) is int
    with pytest.raises(ValueError, match=r"Ask\('a'\): a client is named by its id"):
        Ask("a")
    with pytest.raises(ValueError, match=r"Ask\(1, 0.5\): config maps names to values"):
        Ask(1, 0.5)


def test_a_step_is_made_of_asks():
    assert Step([Ask(1)]).asks == Step(Ask(i) for i in [1]).asks == (Ask(1),)
    with pytest.raises(ValueError, match=r"a step is made of Asks, and 3 is none; a client is asked by Ask\(id\)"):
        Step((Ask(1), 3))
    with pytest.raises(ValueError, match=r"a step is made of a tuple of Asks, not of Ask\(client=1"):
        Step(Ask(1))

"""A part of the server that errs is told what it gave, and what is allowed.

Broken parts stand at module level: experiments name parts by import path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
import torch
from hooks import given

from fedstrata.core.client_context import Done
from fedstrata.core.client_parts import Correction
from fedstrata.core.errors import PartError, RequestError
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.server_parts import Combiner, Selector, ServerStep
from fedstrata.core.steps import Ask, Step
from fedstrata.testing.tiny import run_rounds, session_of


@dataclass
class Memory:
    number: int = 0
    things: object = None


@dataclass
class Item:
    value: int = 0


@dataclass
class Undescribed:
    """Holds items in a list, without saying so."""

    items: list = field(default_factory=list)


@dataclass
class Unresolved:
    """Has an annotation that nobody can read."""

    number: NotImported = 0  # noqa: F821  that is the point


@dataclass(frozen=True)
class OddSelector(Selector):
    """A selector whose state is told from outside."""

    def init(self, view):
        return given("init", lambda: None)

    def select(self, state, view):
        given("change", lambda: None, state)
        return view.eligible[: view.k]

    def feedback(self, state, view, outcomes, scores):
        return given("learnt", lambda: None, state)


@dataclass(frozen=True)
class OddCombiner(Combiner):
    """A combiner whose result is told from outside."""

    def combine(self, state, view, model, arrived):
        return given("combine", lambda: None, model, arrived)


@dataclass(frozen=True)
class OddServer(ServerStep):
    """A server step whose results are told from outside."""

    def broadcast(self, state):
        return given("broadcast", dict)

    def step(self, state, view, model, proposal, sums):
        return given("step", lambda: proposal, model)

    def model_to_evaluate(self, state, model):
        return given("scored", lambda: model, model)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (3, r"OddSelector: `init` gave 3 \(of type int\); allowed: None, or a dataclass"),
        ((1, 2), r"OddSelector: `init` gave \(1, 2\) \(of type tuple\); allowed: None, or a dataclass"),
        (lambda: Memory(things=torch.nn.Linear(1, 1)), "OddSelector: `init` gave a state that holds Linear at "),
        (lambda: np.random.default_rng(0), "OddSelector: `init` gave a state that holds Generator at state"),
        (Unresolved, "OddSelector: `init` gave a state that holds Unresolved .*annotations cannot be read: .*NotImpo"),
    ],
    ids=["a number", "a tuple", "a module", "a generator", "without an import"],
)
def test_a_state_that_cannot_be_kept_is_refused_before_the_first_round(gives, state, said):
    gives(init=state)
    with pytest.raises(PartError, match=said):
        session_of({"method.selector": OddSelector()}).initial_state()


def test_a_state_that_becomes_one_is_refused_when_it_is_saved(gives):
    gives(init=Memory, change=lambda state: setattr(state, "things", {1: object()}))
    with pytest.raises(PartError, match=r"OddSelector: its state holds object at state.selector.things.1; use data"):
        run_rounds(session_of({"method.selector": OddSelector()}), cut=2)


def test_and_one_that_cannot_be_read_again_says_what_to_annotate(gives):
    gives(init=Undescribed, change=lambda state: state.items.append(Item()))
    said = r"OddSelector: its state was saved with the fields \['value'\] at state.selector.items.0, .*annotate the"
    with pytest.raises(PartError, match=said):
        run_rounds(session_of({"method.selector": OddSelector()}), cut=2)


def test_a_selector_changes_its_state_in_place_and_gives_nothing(gives):
    gives(init=Memory, learnt=lambda state: Memory(state.number + 1))
    with pytest.raises(PartError, match=r"OddSelector: `feedback` gave Memory\(number=1.*: nothing. Change `state` in"):
        run_rounds(session_of({"method.selector": OddSelector()}), 1)


@dataclass(frozen=True)
class Undeclared(Selector):
    """Reads sizes without a word."""

    def select(self, state, view):
        return [int(np.argmax(view.client_info.sizes))]


def test_reading_what_was_not_declared_names_the_part():
    with pytest.raises(RequestError, match=r'Undeclared \(in `select`\) reads client_info.sizes .*add "sizes" to its'):
        run_rounds(session_of({"method.selector": Undeclared()}), 1)


@dataclass(frozen=True)
class Misspelt(OddSelector):
    """Needs what there is not."""

    needs: ClassVar = frozenset({"size"})


@dataclass(frozen=True)
class NeedsText(OddSelector):
    """Needs a text instead of a set."""

    needs: ClassVar = "sizes"


@dataclass(frozen=True)
class NotCallable(OddSelector):
    """Has a program that is no function."""

    programs: ClassVar = {"probe": "mean_loss"}


@dataclass(frozen=True)
class CalledTrain(OddSelector):
    """Has a program that can never be reached."""

    programs: ClassVar = {"train": lambda context: Done()}


@dataclass(frozen=True)
class OneMeter(OddSelector):
    """Gives a meter where a list of them is wanted."""

    def meters(self, beside):
        return Correction()


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Misspelt(), r"Misspelt: `needs` is frozenset\(\{'size'\}\); allowed: a frozenset of sizes, labels"),
        (NeedsText(), r"NeedsText: `needs` is 'sizes'; allowed"),
        (NotCallable(), r"NotCallable: `programs` is .*; allowed: functions of a client update"),
        (CalledTrain(), r"CalledTrain: `programs` is .*; allowed: .*not \"train\""),
        (OneMeter(), r"OneMeter: `meters` gave .*; allowed: a list of local parts"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_wish_that_nobody_understands_is_refused(part, said):
    with pytest.raises(PartError, match=said):
        session_of({"method.selector": part})


@dataclass(frozen=True)
class Probing(Selector):
    """Asks for something, and is answered from outside."""

    programs: ClassVar = {"odd": lambda context: given("probe", Done)}

    def select(self, state, view):
        yield Step((Ask(0),), kind="odd", combine=False)
        return [0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, r'the program "odd": .* gave None .*; allowed: Done\(metrics='),
        ({"loss": 1.0}, r'the program "odd": .* gave \{\'loss\': 1.0\} \(of type dict\); allowed: Done'),
        (Done(metrics={"x": [1, 2]}), r"a report says x = \[1, 2\] \(of type list\); allowed in `metrics`: numbers"),
        (
            Done(metrics={"x": torch.ones(3)}),
            r"a report says x = a tensor of shape \(3,\) .*others go into `open_tensors`",
        ),
    ],
    ids=["nothing", "a dict", "a list", "a tensor"],
)
def test_what_a_program_gives_is_checked(gives, answer, said):
    gives(probe=answer)
    with pytest.raises(PartError, match=said):
        run_rounds(session_of({"method.selector": Probing()}), 1)


def test_numbers_of_numpy_travel_as_plain_ones(gives):
    gives(probe=Done(metrics={"x": np.float32(0.5), "n": np.int64(3)}))
    _, ((probe, *_), *_) = run_rounds(session_of({"method.selector": Probing()}), 1)
    assert {k: type(v) for k, v in probe.reports[0].metrics.items()} == {"x": float, "n": int}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, r"`combine` gave None \(is a `return` missing\?\); allowed: Sums"),
        (lambda model, arrived: model.params, r"`combine` gave a tensor of shape \(43,\) .*; allowed: Sums"),
        (Sums({}, 1.0, 1), r"`combine` gave Sums with no update; allowed: .*with 43 numbers"),
        (Sums({"update": torch.tensor(1.0)}, 1.0, 1), r"`combine` gave Sums with a tensor of shape \(\) "),
        (lambda model, arrived: arrived.sum([1.0]), r"\(in `combine`\) gives 1 weights for 3 reports; one each"),
    ],
    ids=["nothing", "a tensor", "no update", "one number", "too few weights"],
)
def test_what_a_combiner_gives_is_checked(gives, result, said):
    gives(combine=result)
    with pytest.raises(PartError, match=f"OddCombiner.* {said}|OddCombiner {said}"):
        run_rounds(session_of({"method.combiner": OddCombiner()}), 1)


def test_a_combiner_that_looks_at_single_updates_must_say_so(gives):
    gives(combine=lambda model, arrived: arrived.each())
    with pytest.raises(RuntimeError, match=r"OddCombiner \(in `combine`\) looks at single updates.*individual = True"):
        run_rounds(session_of({"method.combiner": OddCombiner()}), 1)


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"step": None}, r"`step` gave None .*; allowed: FlatModel\(params, buffers\) with 43 and 0 numbers"),
        ({"step": lambda model: model.params}, r"`step` gave a tensor of shape \(43,\)"),
        ({"step": lambda model: FlatModel(model.params[:3], model.buffers)}, r"`step` gave a model with .* as params"),
        ({"step": lambda model: FlatModel(model.params, None)}, r"`step` gave a model with None .* as buffers"),
        ({"broadcast": torch.ones(3)}, r"`broadcast` gave a tensor .*; allowed: tensors by name"),
        ({"broadcast": {"c": 1.0}}, r"`broadcast` gave 1.0 \(of type float\) as 'c'; allowed: tensors by name"),
    ],
    ids=["nothing", "a tensor", "a short model", "no buffers", "one tensor", "a number"],
)
def test_what_a_server_step_gives_is_checked(gives, hooks, said):
    gives(**hooks)
    with pytest.raises(PartError, match=f"OddServer: {said}"):
        run_rounds(session_of({"method.server_step": OddServer()}), 1)

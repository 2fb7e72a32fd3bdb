"""`check_lr_schedule`, `check_recipe` and `check_engine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from fedstrata.core.client_parts import LearningRate, LRSchedule
from fedstrata.core.engine import Engine, expect_engine
from fedstrata.core.part import Part
from fedstrata.methods.recipes import Recipe
from fedstrata.runs.session import Session
from fedstrata.runs.stage_choices import measure
from fedstrata.testing.conformance import check_part, check_run
from fedstrata.testing.draws import no_hidden_draws
from fedstrata.testing.tiny import run_rounds, session_of, tiny_federation


def check_lr_schedule(schedule: LRSchedule) -> None:
    """Check a learning-rate schedule: finite factors from 0, by time alone, whether rounds have parts or not.

    Parameters
    ----------
    schedule
        An object of a part of your own.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_lr_schedule(fedstrata.make_part("lr_schedules", "cosine"))
    """
    check_part(schedule)
    name = type(schedule).__name__
    for rounds in (1, 2, 7):
        rate = LearningRate(0.5, schedule, rounds)
        times = [(round, (part, parts)) for parts in (1, 4) for round in range(rounds) for part in range(parts)]
        with no_hidden_draws(f"{name}: `factor`", torch_too=True):
            there = [rate.at(*time) for time in times]
            back = [rate.at(*time) for time in reversed(times)]
        assert there == back[::-1], f"{name}: `factor` depends on when it was asked before; it has no state"
        assert there[0] > 0, f"{name}: the learning rate of the first round is 0; begin with more"
    check_run({"train.lr_schedule": schedule})


def check_recipe(recipe: Recipe) -> None:
    """Check a named method: its parts fit together, and run deterministically, resumably and behind messages.

    Parameters
    ----------
    recipe
        A named method of your own.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_recipe(fedstrata.Recipe("FedAvg by size.", "ours", {"selector": "size"}))
    """
    assert isinstance(recipe, Recipe), f"{recipe!r:.60} is no Recipe"
    assert recipe.summary, "a Recipe needs a summary: it is what users see"
    chosen = {}
    if recipe.choose is not None:
        situation = measure(session_of().experiment, tiny_federation())
        first, again = (recipe.choose(situation) for _ in range(2))
        assert list(first) == list(again), "`choose` chose differently the second time"
        assert all(choice.why for choice in first), "every choice needs a reason: it is what users see"
        recipe.choose(replace(situation, table=None))  # as where label counts are hidden
        chosen = {choice.stage: choice.part for choice in first}
    stages = {f"method.{stage}": part for stage, part in {**recipe.stages, **chosen}.items()}
    check_run(stages | {f"train.{key}": value for key, value in recipe.train.items()})


CASES: tuple[Mapping[str, Any], ...] = (  # what an engine has to cope with
    {},
    {"method.name": "scaffold", "system.stragglers.rate": 0.3},  # clients that keep state, and reports that are lost
    {"method.selector": "power-of-choice"},  # probes
    {"method.name": "fedtan", "model.norm": "batch"},  # clients that meet while they compute
    {"method.name": "stratify-single", "method.schedule.length": 12},  # steps that may be run as one
    {"method.combiner": "median"},  # a combiner that looks at single updates
)


def check_engine(engine: Part, tolerance: float = 1e-9) -> None:
    """Check an engine: it gives what the plain local engine gives, in rounds, accounts and client state that is saved.

    Parameters
    ----------
    engine
        An object of a part of your own: its `start` gives the engine.
    tolerance
        How far models may be apart, for engines that compute in another order.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Nowhere(fedstrata.Part):
    ...     '''An engine that is not there yet.'''
    ...
    ...     def start(self, local, federation, expected, log):
    ...         return None
    >>> fedstrata.check_engine(Nowhere())
    Traceback (most recent call last):
    ...
    fedstrata.core.errors.PartError: Nowhere: `start` gave None ...
    """
    check_part(engine)
    name = type(engine).__name__
    for case in CASES:
        models, accounts = [], []
        for cut in (None, 2):
            begun: list[Engine] = []

            def start(work: Session, begun: list[Engine] = begun) -> Engine:
                made: Any = engine
                engine_ = made.start(work.plan.local, work.private.federation, 12, lambda *_, **__: None)
                begun.append(expect_engine(engine, engine_))
                return begun[-1]

            state, _ = run_rounds(session_of(case), engine=start, cut=cut)
            models.append(state.model.params)
            accounts.append(state.traffic)
            for one in begun:
                one.close()
        plain, _ = run_rounds(session_of(case))
        for model, said in zip([plain.model.params, *models[1:]], ("the plain engine", "a resumed run"), strict=True):
            gap = float((model - models[0]).abs().max())
            assert gap <= tolerance, f"{name} with {dict(case)}: the model is off by {gap:.2g} from that of {said}"
        assert all(a == b for a, b in pairwise([plain.traffic, *accounts])), (
            f"{name} with {dict(case)}: it counts {accounts[0]}, the plain engine {plain.traffic}"
        )
        assert torch.isfinite(models[0]).all()

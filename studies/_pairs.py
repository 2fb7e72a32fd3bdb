"""Which parts go together: every pair of parts of two stages, or the whole product, in tiny real runs.

A pair is tried beside the usual parts, and beside those that a schedule of labels needs: it goes together if it runs
anywhere. What does not is refused before it starts, with a reason; anything else is a mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import combinations, product
from typing import Any

import torch

from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.server.loop import model_to_evaluate
from fedstrata.testing.tiny import run_rounds, session_of

STAGES = {  # as in an experiment -> in the registry
    "schedule": "schedules",
    "driver": "drivers",
    "selector": "selectors",
    "sampler": "samplers",
    "corrections": "corrections",
    "combiner": "combiners",
    "server_step": "server_steps",
    "optimizer": "optimizers",
}
BESIDE: tuple[Mapping[str, str], ...] = (  # what else a plan may be made of
    {},
    {"schedule": "stratified", "driver": "chain"},
    {"schedule": "stratified", "driver": "sync"},
)
NAMES = {"corrections": "correction", "also": "correction", "server_step": "server step"}
Choice = Mapping[str, str]  # a part by stage


def pairs() -> Iterator[Choice]:
    """Return every pair of parts of two stages, and of two corrections."""
    for one, other in combinations(STAGES, 2):
        for a, b in product(sorted(registry.names(STAGES[one])), sorted(registry.names(STAGES[other]))):
            yield {one: a, other: b}
    for a, b in combinations(sorted(registry.names("corrections")), 2):
        yield {"corrections": a, "also": b}  # corrections are a list


def whole(stages: Iterable[str]) -> Iterator[Choice]:
    """Return every combination of parts of some stages."""
    names = {stage: sorted(registry.names(STAGES[stage])) for stage in stages}
    for kinds in product(*names.values()):
        yield dict(zip(names, kinds, strict=True))


def attempt(choice: Choice, rounds: int = 2) -> str | None:
    """Run a combination: None if it ran with a finite model, else why it was refused."""
    reasons = []
    for beside in BESIDE:
        if (reason := refused({**beside, **choice}, rounds)) is None:
            return None
        reasons.append(reason)
    # The plan whose refusal tells something is one in which the first part could work.
    stage, kind = next(iter(choice.items()))
    telling = (reason for beside, reason in zip(BESIDE, reasons, strict=True) if runs_alone(beside, stage, kind))
    return next(telling, reasons[0]).split(" does not fit this plan: ")[-1]


def refused(choice: Choice, rounds: int) -> str | None:
    """Say why a plan is refused; None if it runs and gives a finite model."""
    try:
        work = session_of({"train.batch_size": 16, **overrides(choice)})  # few steps: there are many pairs
        state, _ = run_rounds(work, rounds)
    except RequestError as error:
        return str(error)
    for model in (state.model, model_to_evaluate(work.plan, state)):
        assert torch.isfinite(model.params).all(), f"{dict(choice)} gave a model that is not finite"
    return None


def runs_alone(beside: Choice, stage: str, kind: str) -> bool:
    """Say whether a part works beside the given ones."""
    return _runs(frozenset({**beside, stage: kind}.items()))


@cache
def _runs(choice: frozenset[tuple[str, str]]) -> bool:
    return refused(dict(choice), rounds=1) is None


def overrides(choice: Choice) -> dict[str, Any]:
    """Write a combination as an experiment would."""
    asked: dict[str, Any] = {f"method.{stage}": {"kind": choice[stage]} for stage in PLAIN if stage in choice}
    corrections = [{"kind": choice[place]} for place in ("corrections", "also") if place in choice]
    asked |= {"method.corrections": corrections} if corrections else {}
    asked |= {"train.optimizer": {"kind": choice["optimizer"]}} if "optimizer" in choice else {}
    return asked


PLAIN = ("schedule", "driver", "selector", "sampler", "combiner", "server_step")


def table(refusals: Mapping[tuple[str, str], str]) -> str:
    """Write refused pairs down, in as few lines as those of one part and one reason make."""
    rows = []
    for reason in dict.fromkeys(refusals.values()):
        own = [pair for pair, why in refusals.items() if why == reason]
        groups = [_grouped(own), _grouped([(other, one) for one, other in own])]
        rows += [f"| {one} | {', '.join(others)} | {reason} |" for one, others in min(groups, key=len).items()]
    return "\n".join(["| part | does not go with | because |", "|---|---|---|", *rows]) + "\n"


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for one, other in pairs:
        groups.setdefault(one, []).append(other)
    return groups


def named(choice: Choice) -> tuple[str, str]:
    """Return the two names of a pair."""
    one, other = (f"{NAMES.get(stage, stage)} `{kind}`" for stage, kind in choice.items())
    return one, other

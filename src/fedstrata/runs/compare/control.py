"""Whether rows differ in more than they are about, or in less.

Many papers average updates plainly while FedAvg weighs them by samples, and some recipes suggest settings of training.
Such a difference is not the method's point, but it is in every figure of the comparison. What an experiment sets for
all rows, on the other hand, may take away a stage that a method is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedstrata.config.completion import DEFAULTS
from fedstrata.config.experiment import Experiment
from fedstrata.config.open_stages import open_stages
from fedstrata.config.tables import kinds_of, write_value
from fedstrata.methods.recipes import STAGES
from fedstrata.runs.compare.design import Design
from fedstrata.runs.compare.settings import Entry, within

WEIGHTS = {"size": "by their samples", "uniform": "all alike"}  # combiners that do nothing but weigh


def side_differences(design: Design) -> list[str]:
    """Say in which rows a stage or a setting differs from the first row's without anybody having asked for it."""
    first, *others = design.entries
    found: dict[str, list[str]] = {}
    for condition in design.conditions:
        theirs = design.experiments[condition.name, first.name].dump()
        for entry in others:
            ours = design.experiments[condition.name, entry.name].dump()
            said = (
                [] if entry.without is not None else [*_weights(entry, ours, theirs), *_training(entry, ours, theirs)]
            )
            for text in said:
                rows = found.setdefault(text, [])
                rows += [entry.name] if entry.name not in rows else []
    return [f"{', '.join(rows)} against {first.name}: {text}" for text, rows in found.items()]


def replaced_stages(design: Design) -> list[str]:
    """Say which rows have a stage from the experiment where their own method has another, or would choose one."""
    found: dict[tuple[str, str], dict[str, None]] = {}  # stages in order, by row and how
    for place, experiment in design.experiments.items():
        entry = next(entry for entry in design.entries if entry.name == place[1])
        if "method.name" not in entry.overrides:
            continue
        own = Experiment.of({"method": {"name": experiment.method.name}})
        would_choose = open_stages(own)
        for stage in STAGES:
            key = f"method.{stage}"
            if _sets(entry, key) or any(within(key, same) for same in design.same):
                continue
            ours, theirs = (getattr(one.method, stage) for one in (own, experiment))
            if stage in would_choose and stage not in open_stages(experiment):
                found.setdefault((entry.name, "whatever it would choose"), {})[stage] = None
            elif stage not in would_choose and kinds_of(ours) not in (kinds_of(theirs), kinds_of(DEFAULTS[stage])):
                found.setdefault((entry.name, "not with its own"), {})[stage] = None
    return [f"{name} runs with the experiment's {', '.join(stages)}, {how}" for (name, how), stages in found.items()]


def _weights(entry: Entry, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    """Notice other weights of updates, beside another difference."""
    mine, other = (table["method"].get("combiner", {}).get("kind") for table in (ours, theirs))  # None: to be chosen
    beside = any(ours["method"].get(stage) != theirs["method"].get(stage) for stage in STAGES if stage != "combiner")
    if mine != other and {mine, other} <= set(WEIGHTS) and beside and not _sets(entry, "method.combiner"):
        yield (
            f"updates are weighed {WEIGHTS[mine]}, not {WEIGHTS[other]}, which adds to the difference; --same combiner "
            "gives all what the first has"
        )


def _training(entry: Entry, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    """Notice settings that a recipe suggests."""
    apart = [key for key, value in ours["train"].items() if value != theirs["train"].get(key)]
    apart = [key for key in apart if not _sets(entry, f"train.{key}")]
    if apart:
        said = ", ".join(f"train.{key} = {write_value(ours['train'][key])}" for key in apart)
        keys = ",".join(f"train.{key}" for key in apart)
        yield f"the recipe suggests {said}; --same {keys} gives all what the first has"


def _sets(entry: Entry, key: str) -> bool:
    return any(f"{own}.".startswith(f"{key}.") for own in entry.overrides)

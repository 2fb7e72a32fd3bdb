"""Stages that a recipe chooses by what is measured: open in an experiment that meets no data, filled in a run's.

A stage that the experiment sets is never open. One of which it sets only options waits for the part to be chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedstrata.config import tables
from fedstrata.config.completion import DEFAULTS
from fedstrata.config.experiment import Experiment
from fedstrata.methods.recipes import STAGES


def open_stages(experiment: Experiment) -> list[str]:
    """Return the stages that the recipe has still to choose."""
    return [stage for stage in STAGES if not tables.is_part(getattr(experiment.method, stage))]


def reopen(experiment: Experiment) -> Experiment:
    """Return the experiment as it was before its recipe chose."""
    update: dict[str, Any] = dict.fromkeys(experiment.method.chosen or (), None) | {"chosen": None}
    return experiment.model_copy(update={"method": experiment.method.model_copy(update=update)})


def fill(experiment: Experiment, parts: Mapping[str, Any]) -> Experiment:
    """Fill the open stages with these parts, or else FedAvg's, and write down which they were."""
    stages = open_stages(experiment)
    if not stages:
        return experiment
    table = experiment.dump()
    method = {**table["method"], "chosen": stages}
    for stage in stages:
        put = tables.merge_lists if stage == "corrections" else tables.merge
        method[stage] = put(parts.get(stage, DEFAULTS[stage]), method.get(stage), f"method.{stage}")
    return Experiment.of({**table, "method": method})

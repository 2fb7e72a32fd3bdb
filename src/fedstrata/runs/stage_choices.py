"""Stages that a recipe chooses by what is measured: filled in before a run is built, each choice with its reason.

A run's experiment file then names every part, so it is resumed and run again like any other. Reasons are not stored:
they follow from the same figures every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from fedstrata.config.build import build_plan
from fedstrata.config.completion import DEFAULTS
from fedstrata.config.experiment import Experiment
from fedstrata.config.open_stages import fill, open_stages, reopen
from fedstrata.config.tables import kinds_of, write_value
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.core.plan import per_round
from fedstrata.data.federation_info import FederationInfo
from fedstrata.data.label_table import LabelTable
from fedstrata.methods.situation import Situation, StageChoice
from fedstrata.privacy.refusals import refuse


def choose_stages(
    experiment: Experiment, federation: FederationInfo, model: nn.Module | None = None
) -> tuple[Experiment, list[StageChoice]]:
    """Fill the stages that the experiment leaves to its recipe, and say why; a part that does not fit is FedAvg's.

    Of an experiment that was settled before, nothing changes: choices that it still holds are said again.
    """
    recipe = registry.find("methods", experiment.method.name, "method.name")
    if recipe.choose is None:
        return experiment, []
    opened, kept = reopen(experiment), list[StageChoice]()
    for choice in recipe.choose(measure(experiment, federation)):
        if choice.stage in open_stages(opened):
            why_not = _refusal(fill(opened, _parts([*kept, choice])), federation, model)
            kept.append(choice if why_not is None else _given_up(choice, why_not))
    settled = fill(opened, _parts(kept)) if open_stages(experiment) else experiment
    used = {choice.stage: getattr(settled.method, choice.stage) for choice in kept}
    still = [one for one in kept if kinds_of(one.part) == kinds_of(used[one.stage])]
    return settled, [replace(one, part=used[one.stage]) for one in still]


def measure(experiment: Experiment, federation: FederationInfo) -> Situation:
    """Return what the server may know: no label counts where they are hidden or were not told."""
    privacy, clients = experiment.privacy, len(federation)
    hidden = privacy.clustering != "server" or privacy.histogram_epsilon is not None
    known = not hidden and int((federation.counts.sum(0) > 0).sum()) > 1
    return Situation(
        clients=clients,
        k=min(per_round(experiment.train.clients_per_round, clients), clients),
        classes=len(federation.classes),
        table=LabelTable.of(federation.counts) if known else None,
        wrong_labels=federation.wrong_labels,
        stragglers=experiment.system.stragglers.rate,
        rounds=experiment.train.rounds,
        optimizer=next(iter(kinds_of(experiment.train.optimizer)), "sgd"),
    )


def _parts(choices: Sequence[StageChoice]) -> dict[str, Any]:
    return {choice.stage: choice.part for choice in choices}


def _refusal(experiment: Experiment, federation: FederationInfo, model: nn.Module | None) -> str | None:
    try:
        refuse(experiment, build_plan(experiment, federation, model), federation)
    except RequestError as error:
        return str(error)
    return None


def _given_up(choice: StageChoice, why_not: str) -> StageChoice:
    why = f"{write_value(choice.part)} was meant, because {choice.why}, but does not go with this experiment: {why_not}"
    return replace(choice, part=DEFAULTS[choice.stage], why=why)

"""From rules to advice: which recipes fit here, what they cost beside FedAvg, what they reveal, how to run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fedstrata.config.build import build_plan
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.data.federation import Federation
from fedstrata.inspection.rehearsal import Cost, rehearse
from fedstrata.inspection.rules import SkewFacts, applying
from fedstrata.privacy import FEWEST
from fedstrata.privacy.histograms import NoisyHistograms
from fedstrata.privacy.refusals import refuse
from fedstrata.privacy.statement import TOLD, statement
from fedstrata.runs.stage_choices import choose_stages

Described = Callable[[str, Mapping[str, Any]], Experiment]  # a method by name, and settings of its own
Command = Callable[[str, Mapping[str, Any]], str]


@dataclass(frozen=True)
class Tried:
    """A recipe on this federation: what a round costs, and what the server could learn."""

    cost: Cost
    reveals: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """A recipe that fits."""

    recipe: str
    because: str
    mind: str
    cost: Mapping[str, float]  # times FedAvg's bytes and client updates of a round; bytes before the first
    reveals: tuple[str, ...]  # to the server, beyond what FedAvg does
    settings: Mapping[str, Any]
    command: str
    not_here: Mapping[str, str]  # recipes that would have come first, and why they do not go with this experiment


def advise(
    facts: SkewFacts, described: Described, federation: Federation, model: nn.Module | None, command: Command
) -> tuple[Tried, list[Advice], dict[str, str]]:
    """Return FedAvg as the baseline, recipes that fit, and those that would but for the experiment, with the reason."""
    baseline = try_plan(described("fedavg", {}), federation, model)
    advice: list[Advice] = []
    refused: dict[str, str] = {}
    for rule, because in applying(facts):
        settings = rule.settings(facts)
        not_here: dict[str, str] = {}
        for name in rule.recipes:
            try:
                found = try_plan(described(name, settings), federation, model)
            except RequestError as error:
                not_here[name] = str(error)
                continue
            new = tuple(said for said in found.reveals if said not in baseline.reveals)
            cost = found.cost.over(baseline.cost)
            run = command(name, settings)
            advice.append(Advice(name, because, rule.mind, cost, new, dict(settings), run, not_here))
            break
        else:
            refused |= not_here
    return baseline, advice, refused


def try_plan(experiment: Experiment, federation: Federation, model: nn.Module | None) -> Tried:
    """Compose a plan, rehearse it, and read its privacy statement; refuse what does not go together."""
    experiment, _ = choose_stages(experiment, federation, model)
    plan = build_plan(experiment, federation, model)
    refuse(experiment, plan, federation)
    privacy, told, clusters = experiment.privacy, frozenset(TOLD) & plan.needs, None
    if privacy.aggregate == "masked":
        plan = replace(plan, fewest=FEWEST)
    if privacy.clustering != "server":
        told = told - {"counts"}
    if privacy.clustering == "masked":
        clusters = "of label counts it sees centres, sizes and spreads of clusters, and who is in which"
    elif privacy.histogram_epsilon is not None:
        clusters = NoisyHistograms(privacy.histogram_epsilon).describe()
    said = statement(experiment, plan, told, clusters, features=federation.features_told)
    chained: Sequence[str] = [
        f"Beside the server, the next client: {s}" for s in said.get("next client of a chain", ())
    ]
    return Tried(rehearse(plan, federation), (*said["server"], *chained))

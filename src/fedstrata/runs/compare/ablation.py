"""What each stage of a method brings: the same method again, with one stage at a time put back to FedAvg's."""

from __future__ import annotations

from collections.abc import Sequence

from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError, unknown_name
from fedstrata.methods.recipes import STAGES
from fedstrata.runs.compare.settings import Entry


def ablate_method(whole: Entry, experiment: Experiment, stages: Sequence[str]) -> tuple[list[Entry], list[str]]:
    """Return an entry for each stage in which the method is not FedAvg, and remarks about the others."""
    for stage in stages:
        if stage not in STAGES:
            raise unknown_name("ablate", stage, STAGES)
    if len(set(stages)) != len(stages):
        raise RequestError(f"a stage is named twice: {', '.join(stages)}")
    plain, own = (e.dump()["method"] for e in (Experiment.of({"method": {"name": "fedavg"}}), experiment))
    entries, same = [], []
    for stage in stages:
        if own[stage] == plain[stage]:
            same.append(stage)
            continue
        kept = {key: value for key, value in whole.overrides.items() if not f"{key}.".startswith(f"method.{stage}.")}
        put_back = {**kept, f"method.{stage}": plain[stage]}
        entries.append(Entry(f"{whole.name}-without-{stage}", put_back, stage))
    if not entries:
        raise RequestError(f"{whole.name} is FedAvg in {', '.join(same)}: there is nothing to ablate")
    return entries, [f"{whole.name} has FedAvg's {stage} already; it is not ablated" for stage in same]

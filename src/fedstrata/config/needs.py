"""What the method of an experiment has to know of clients, by the experiment alone: no data, no model, no plan.

A site asks this before it tells anything: a server may say that it needs what its own run does not.
"""

from __future__ import annotations

from fedstrata.config.completion import make
from fedstrata.config.experiment import Experiment
from fedstrata.config.travel import parts_of
from fedstrata.core import registry

AT_SERVER = ("drivers", "schedules", "selectors", "combiners", "server_steps", "corrections")


def needs_of(experiment: Experiment) -> frozenset[str]:
    """Return it (`Plan.needs`); where a recipe has still to choose parts, what it chooses them by."""
    needs: frozenset[str] = registry.find("methods", experiment.method.name, "method.name").needs
    for part in parts_of(experiment):
        if part.stage not in AT_SERVER:
            continue
        built = make(part.stage, {"kind": part.name, **part.options}, part.key)
        if part.stage == "schedules":
            if built.sampler is None:
                continue  # nothing follows it
            built = built.hiding_counts() if experiment.privacy.labels != "none" else built
        needs = needs.union(getattr(built, "needs", ()))
    return needs

"""How many sites take part in a round: a federation has few of them, and none should be left out by rounding.

Where the experiment does not say, all do if there are at most 10. A fraction is rounded up, and gives at least 2.
"""

from __future__ import annotations

import math

import tomli_w

from fedstrata.config.experiment import Experiment

KEY, FEW, FEWEST = "train.clients_per_round", 10, 2


def settle_sites_per_round(experiment: Experiment, sites: int) -> Experiment:
    """Return an experiment that says how many of so many sites take part in a round."""
    asked = experiment.train.clients_per_round
    if not isinstance(asked, float):
        return experiment
    if is_default(experiment) and sites <= FEW:
        return Experiment.of(experiment, **{KEY: "all"})
    return Experiment.of(experiment, **{KEY: max(math.ceil(asked * sites - 1e-9), min(FEWEST, sites))})


def is_default(experiment: Experiment) -> bool:
    """Say whether nobody said how many take part: neither the user nor the method's recipe."""
    return "clients_per_round" not in experiment.train.model_fields_set


def to_submit(experiment: Experiment) -> str:
    """Write an experiment for the server; what the number of sites decides is left open as long as nobody said it."""
    table = experiment.dump()
    if is_default(experiment):
        del table["train"]["clients_per_round"]
    return tomli_w.dumps(table)

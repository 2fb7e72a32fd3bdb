"""Experiments in few words."""

from fedstrata.config.experiment import Experiment
from fedstrata.config.tables import assignment

PROX = {
    "kind": "prox",
    "mu": 0.01,
    "when": "always",
    "adaptive": False,
    "gate": "loss",
    "over": "batch",
    "v_th": "quantile",
    "quantile": 0.5,
    "b_th": 0,
}


def of(**overrides):
    return Experiment.of(None, **{key.replace("__", "."): value for key, value in overrides.items()})


def asked(text):
    """Return the experiment of `--set` words."""
    return Experiment.of(None, **dict(assignment(word) for word in text.split()))

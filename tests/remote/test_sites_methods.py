"""Every registered method, selector, combiner and correction runs at real sites."""

from __future__ import annotations

import pytest
import torch
from in_process_sites import SITES, Here, hosts, model

from fedstrata.config.experiment import Experiment
from fedstrata.core import registry
from fedstrata.remote.server.session import run_at_sites

TINY = {
    "data.clients": 3,
    "data.partition": "iid",
    "train.rounds": 1,
    "train.clients_per_round": 2,
    "train.batch_size": 128,
}
NORMED = {"model.name": "mlp", "model.norm": "batch"}
MORE = {  # what some need to be what they are
    "stratify-single": {"method.schedule.length": 6},
    "stratify-batch": {"method.schedule.length": 30, "train.batch_size": 10, **NORMED},
    "fedtan": NORMED,
    **{key: {"train.clients_per_round": 3} for key in ("trimmed-mean", "krum", "multi-krum", "geometric-median")},
}
KEYS = {"methods": "method.name", "selectors": "method.selector", "combiners": "method.combiner"}
PARTS = [(stage, name) for stage in (*KEYS, "corrections") for name in sorted(registry.names(stage))]


@pytest.fixture(scope="module")
def sites():
    return Here(hosts(TINY))


@pytest.mark.parametrize(("stage", "name"), PARTS, ids=str)
def test_every_registered_part_runs_at_sites(tmp_path, sites, stage, name):
    wish = {"method.corrections": [{"kind": name}]} if stage == "corrections" else {KEYS[stage]: name}
    asked = TINY | wish | (MORE.get(name, {}) if stage in ("methods", "combiners") else {})
    run = run_at_sites(sites, Experiment.of(None, **asked), tmp_path / f"{stage}-{name}", len(SITES))
    trouble = ("site_refused", "dropped", "no_update", "site_not_scored")
    assert not [event for event in run.events() if event["event"] in trouble]
    assert torch.isfinite(model(run)).all()

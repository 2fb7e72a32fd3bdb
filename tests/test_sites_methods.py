"""Every registered method and part runs at sites, or is refused before a site is asked to train."""

from __future__ import annotations

import pytest
import torch
from in_process_sites import SITES, Here, hosts, model

from fedstrata import RequestError, registry
from fedstrata.away import run_at_sites
from fedstrata.experiment import Experiment

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
}
KEYS = {"methods": "method.name", "selectors": "method.select", "combiners": "method.combine"}
REFUSED = {  # by the reason
    ("combiners", "fedga-greedy"): "data.proxy",
    ("methods", "fedga-greedy"): "data.proxy",
}
PARTS = [(stage, name) for stage in (*KEYS, "corrections") for name in sorted(registry.names(stage))]


@pytest.fixture(scope="module")
def sites():
    return Here(hosts(TINY))


@pytest.mark.parametrize(("stage", "name"), PARTS, ids=lambda value: str(value))
def test_every_part_runs_at_sites_or_is_refused_at_once(tmp_path, sites, stage, name):
    wish = {"method.correct": [{"kind": name}]} if stage == "corrections" else {KEYS[stage]: name}
    asked = []

    def watched(site, kind, reply):
        asked.append(kind)
        return reply

    sites.tamper = watched
    experiment = Experiment.of(None, **(TINY | wish | (MORE.get(name, {}) if stage == "methods" else {})))
    where = tmp_path / f"{stage}-{name}"
    try:
        run = run_at_sites(sites, experiment, where, len(SITES))
    except RequestError as error:
        assert "task" not in asked
        assert REFUSED.get((stage, name), "is not refused") in str(error)
        return
    assert (stage, name) not in REFUSED
    trouble = [e for e in run.events() if e["event"] in ("site_refused", "dropped", "no_update", "site_not_scored")]
    assert not trouble
    assert torch.isfinite(model(run)).all()

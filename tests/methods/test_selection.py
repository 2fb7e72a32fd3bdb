"""Selectors against each other: what one does better than another, paired over seeds; each of these can fail."""

from __future__ import annotations

import numpy as np
import pytest
from light import LIGHT

from fedstrata import Record, RequestError, replay, train
from fedstrata.core import registry
from fedstrata.methods.selectors.flips import Flips
from fedstrata.methods.selectors.oort import Oort
from fedstrata.methods.selectors.random import Random
from fedstrata.testing.tiny import run_rounds, session_of


def record(seed, clients=200, rounds=200, alpha=0.3):
    """Return clients as in FLIPS: 200 parties, Dirichlet 0.3; some are harder for good, some slower."""
    rng = np.random.default_rng(seed)
    counts = np.array([rng.multinomial(100, mix) for mix in rng.dirichlet(np.full(10, alpha), clients)])
    hard = rng.lognormal(0, 0.5, clients)
    falling = np.exp(-np.arange(rounds) / 80)[:, None]
    return Record(counts, hard * falling * rng.lognormal(0, 0.1, (rounds, clients)), rng.lognormal(0, 0.5, clients))


def test_flips_is_fairer_than_oort_and_nearer_the_global_mix_than_random():
    for seed in range(4):
        known = record(seed)
        flips, oort, random = (
            replay(part, known, rounds=100, k=40, seed=seed) for part in (Flips(clusters=10), Oort(), Random())
        )
        assert flips.fairness > oort.fairness + 0.2
        assert np.mean(flips.divergence) < 0.9 * np.mean(random.divergence)


@pytest.mark.parametrize("name", sorted(registry.names("selectors")))
def test_every_selector_copes_with_more_clients_wanted_than_there_are(name):
    _, rounds = run_rounds(session_of({"method.selector": name, "train.clients_per_round": 50}))
    for outcomes in rounds:
        trained = [o for o in outcomes if o.step.combine]
        assert [sorted(a.client for a in o.step.asks) for o in trained] == [list(range(6))]


@pytest.mark.parametrize("name", sorted(registry.names("selectors")))
def test_every_selector_copes_with_clients_that_come_and_go(name):
    asked = {"method.selector": name, "system.availability": {"kind": "independent", "rate": 0.5}}
    work = session_of(asked)
    _, rounds = run_rounds(work)
    for round, outcomes in enumerate(rounds):
        here = set(work.plan.view(work.client_info, round, lambda *_, **__: None).eligible.tolist())
        assert {a.client for o in outcomes for a in o.step.asks} <= here


@pytest.mark.parametrize("name", ["gradclus", "hics", "divfl"])
def test_a_selector_that_compares_everybody_with_everybody_says_its_limit(name, monkeypatch):
    part = registry.find("selectors", name, "method.selector")
    monkeypatch.setattr(part, "LIMIT", 2)
    with pytest.raises(RequestError, match="2"):
        run_rounds(session_of({"method.selector": name}), rounds=1)


def test_every_selector_has_its_paper():
    for name in registry.names("selectors"):
        part = registry.find("selectors", name, "method.selector")
        assert part.paper or name == "everyone", name


def test_label_divergence_of_a_round_is_between_zero_and_the_log_of_the_labels():
    run = train(overrides={**LIGHT, "train.rounds": 15, "train.clients_per_round": 4}, out="run")
    values = np.array(run.curve("label_divergence"))
    assert ((values >= 0) & (values < np.log(10))).all()

"""FLIPS in an enclave selects as in the open, tells ids only, and takes no request that does not fit."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from enclave_parties import OPEN, Direct, parties_of, told
from torch import nn

from fedstrata import RequestError
from fedstrata.config.sections import EnclaveChoice
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.errors import FedstrataError
from fedstrata.core.messages import Report
from fedstrata.core.rng import Streams
from fedstrata.core.steps import Ask, Outcome, Scores, Step, View
from fedstrata.core.storage import tree
from fedstrata.data.drift import Drift
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy.enclave import dev_insecure
from fedstrata.privacy.enclave.launch import start, tell
from fedstrata.privacy.enclave.policy import Scoring, Terms
from fedstrata.privacy.enclave.requests import Request
from fedstrata.privacy.enclave.selector import EnclaveAnswers, InEnclave
from fedstrata.privacy.enclave.service import Service, distribution
from fedstrata.privacy.frames import RefusedError
from fedstrata.runs.training import describe_experiment
from fedstrata.testing import tiny_federation
from fedstrata.testing.tiny import session_of


def dirichlet(clients=60, classes=8, seed=1):
    rng = np.random.default_rng(seed)
    counts = np.array([rng.multinomial(50, mix) for mix in rng.dirichlet(np.full(classes, 0.3), clients)])
    counts[[5, 17]] = 0  # two have no data
    return counts


def views(counts, rounds, k=10):
    """Return what the server sees: not the counts. From round to round a fifth of the clients is away."""
    holders, streams = np.flatnonzero(counts.sum(1)), Streams(0)
    key = streams("tiebreak").permutation(len(counts))
    rng = np.random.default_rng(3)
    for round in range(rounds):
        here = holders if round % 3 == 0 else np.sort(rng.choice(holders, len(holders) * 4 // 5, replace=False))
        for known in ({"counts": counts}, {}):
            client_info = ClientInfo(*counts.shape, holders, key, known)
            yield View(round, rounds, k, here, client_info, None, partial(streams, round=round), lambda *_, **__: None)


def run_selector(selector, state, counts, rounds, open_run, cut=None, fresh=None, k=10):
    """Let a selector choose with a fifth of the reports missing; with `cut`, from a saved state and a fresh service."""
    rng, ids = np.random.default_rng(4), []
    seen = list(views(counts, rounds, k))[0 if open_run else 1 :: 2]
    for round, view in enumerate(seen):
        if round == cut:
            arrays = {}
            saved = json.loads(json.dumps(tree.flatten(state, arrays)))
            selector, state = fresh, tree.restore(saved, arrays, EnclaveAnswers())
        chosen = sorted(selector.select(state, view))
        missing = sorted(rng.choice(chosen, len(chosen) // 5, replace=False).tolist())
        reports = tuple(Report(i, 1, 1, 1.0, 1.0) for i in chosen if i not in missing)
        outcomes = [Outcome(Step(tuple(map(Ask, chosen))), 0, reports, tuple(missing))]
        outcomes.append(Outcome(Step(tuple(map(Ask, chosen)), combine=False), 1, (), tuple(chosen)))  # a probe
        selector.feedback(state, view, outcomes, Scores())
        ids.append(chosen)
    return ids


@pytest.mark.parametrize("flips", [Flips(clusters=6), Flips(repeats=3, rate="reset", features="counts")])
def test_the_enclave_selects_as_flips_does_in_the_open_and_after_a_restart(flips):
    counts = dirichlet()
    opened = run_selector(flips, flips.init(next(views(counts, 1))), counts, 30, open_run=True)
    inside = InEnclave(told(counts, flips=flips))
    assert inside.needs == frozenset()
    assert run_selector(inside, EnclaveAnswers(), counts, 30, open_run=False) == opened
    fresh = InEnclave(told(counts, flips=flips, seed=8))
    halfway = InEnclave(told(counts, flips=flips))
    assert run_selector(halfway, EnclaveAnswers(), counts, 30, open_run=False, cut=13, fresh=fresh) == opened
    assert len({len(ids) for ids in opened}) > 1  # where reports are missing, more are asked


def test_a_service_serves_one_run():
    counts = dirichlet()
    selector = InEnclave(told(counts, flips=Flips(clusters=6)))
    run_selector(selector, EnclaveAnswers(), counts, 3, open_run=False)
    with pytest.raises(FedstrataError, match="another run"):
        run_selector(selector, EnclaveAnswers(), counts, 3, open_run=False)


def test_every_round_is_asked_about_once():
    enclave = told(dirichlet(), flips=Flips(clusters=6))
    enclave.ask(Request("select", 4, 2))
    for round in (4, 3, 0, -1, 100):
        with pytest.raises(RefusedError, match="once"):
            enclave.ask(Request("select", round, 2, [np.array([1, 2])]))
    enclave.ask(Request("feedback", 4, 2))
    with pytest.raises(RefusedError, match="once"):
        enclave.ask(Request("feedback", 4, 2, [np.array([1]), np.array([2])]))
    with pytest.raises(RefusedError, match="unknown"):
        enclave.ask(Request("clusters", 5, 2))


def test_ids_come_in_order_and_nothing_else_comes():
    counts = dirichlet()
    enclave = told(counts, flips=Flips(clusters=6))
    for view in list(views(counts, 4))[1::2]:
        ids = enclave.ask(Request.to_select(view))
        assert ids == sorted(set(ids))
        assert enclave.ask(Request.to_learn(view, [])) == []


def test_who_did_not_tell_is_not_selected():
    counts = dirichlet()
    enclave = told(counts, who=range(0, 60, 2), flips=Flips(clusters=3))
    view = list(views(counts, 1, k=25))[1]
    assert all(i % 2 == 0 for i in enclave.ask(Request.to_select(view)))


def test_the_service_wants_three_clients_and_hears_nobody_later():
    counts = np.eye(4, dtype=np.int64) * 9
    job, parties, secrets = parties_of(counts, flips=Flips(clusters=2))
    enclave = Direct(job)
    request = Request("select", 0, 2)
    for i in range(3):
        with pytest.raises(RefusedError, match="at least 3"):
            enclave.ask(request)
        tell(enclave.relay, parties[i], distribution(counts[i], secrets[i]))
    assert len(enclave.ask(request)) == 2
    with pytest.raises(RefusedError, match="after the first selection"):
        tell(enclave.relay, parties[3], distribution(counts[3], secrets[3]))


@pytest.mark.parametrize(
    "bad", [b"", distribution(np.array([1, -1, 1]), bytes(32)), bytes(8 * 3 + 31), bytes(8 * 3 + 33)]
)
def test_counts_that_are_none_are_refused(bad):
    job, parties, _ = parties_of(np.ones((3, 3), dtype=int))
    with pytest.raises(RefusedError, match="no proper label counts"):
        tell(Service(job, dev_insecure.attest).relay, parties[0], bad)


@pytest.mark.parametrize("ids", [[-1], [60]])
def test_requests_about_nobody_are_refused(ids):
    with pytest.raises(RefusedError, match="not among"):
        told(dirichlet()).ask(Request("select", 0, 2, [np.array(ids)]))


def test_noise_exchanges_picks_and_nobody_outside_can_tell_which():
    counts, flips, rounds = dirichlet(), Flips(clusters=6, over_provision=False), 40
    plain = run_selector(InEnclave(told(counts, flips=flips)), EnclaveAnswers(), counts, rounds, open_run=False)
    noisy = run_selector(
        InEnclave(told(counts, flips=flips, noise=0.3)), EnclaveAnswers(), counts, rounds, open_run=False
    )
    same = run_selector(
        InEnclave(told(counts, flips=flips, noise=0.3)), EnclaveAnswers(), counts, rounds, open_run=False
    )
    other = run_selector(
        InEnclave(told(counts, flips=flips, noise=0.3, seed=5)), EnclaveAnswers(), counts, rounds, open_run=False
    )
    assert noisy == same
    assert noisy != other  # with other secrets of the clients, which the server does not know
    assert all(len(set(ids)) == 10 for ids in noisy)
    exchanged = [len(set(a) - set(b)) / 10 for a, b in zip(plain, noisy, strict=True)]
    assert np.mean(exchanged) == pytest.approx(0.3, abs=0.08)
    fresh = InEnclave(told(counts, flips=flips, noise=0.3))
    halfway = InEnclave(told(counts, flips=flips, noise=0.3))
    assert run_selector(halfway, EnclaveAnswers(), counts, rounds, open_run=False, cut=11, fresh=fresh) == noisy


@pytest.mark.parametrize("measurement", [None, "", "zz" * 48, "00" * 47])
def test_hardware_needs_a_measurement(measurement):
    with pytest.raises(RequestError, match=r"privacy\.enclave\.measurement"):
        start(Flips(), tiny_federation(), Streams(0), EnclaveChoice(attestation="sev-snp", measurement=measurement), 9)


def test_labels_that_change_are_refused():
    federation = tiny_federation().moving(Drift())
    with pytest.raises(RequestError, match=r"data\.drift"):
        start(Flips(), federation, Streams(0), OPEN, 9)


def test_a_model_given_from_python_is_refused():
    federation = tiny_federation()
    asked = describe_experiment(None, None, {}, federation, nn.Linear(4, 3))
    with pytest.raises(RequestError, match="given"):
        Scoring.of(asked, federation, "")


def test_terms_come_back_as_they_were():
    work = session_of()
    scoring = Scoring.of(work.experiment, work.federation, "head")
    for terms in (Terms(6, 3, 9), Terms(6, 3, 9, 1, Flips(clusters=3, rate="reset"), 0.25, scoring)):
        assert Terms.read(terms.written()).written() == terms.written()
        assert Terms.read(terms.written()).flips == terms.flips
    with pytest.raises(RequestError, match="noise"):
        Terms.read(Terms(6, 3, 9, noise=2.0).written())

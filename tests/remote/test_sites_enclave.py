"""FLIPS in an enclave at the server, and sites that know from their own administrators which one they may trust."""

from __future__ import annotations

import json

import numpy as np
import pytest
from in_process_sites import SITES, SMALL, model, with_keys

from fedstrata import RequestError, train
from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import EnclaveChoice
from fedstrata.deploy.keys import make
from fedstrata.privacy.enclave.dev_insecure import InsecureWarning
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.server import enclave
from fedstrata.remote.server.session import run_at_sites

pytestmark = [
    pytest.mark.filterwarnings("ignore::fedstrata.privacy.enclave.dev_insecure.InsecureWarning"),
    pytest.mark.usefixtures("quick_processes"),
]

FOUR = (*SITES, "dresden")
INSECURE = {"privacy.enclave.attestation": "dev-insecure", "privacy.enclave.allow_insecure": True}
FLIPS = {"method.name": "flips", "data.clients": 4, "train.clients_per_round": 2, "method.selector.clusters": 2}
INSIDE = FLIPS | INSECURE | {"privacy.clustering": "enclave", "train.rounds": 4}
TRUSTED = EnclaveChoice(attestation="dev-insecure", allow_insecure=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "all"
    make(folder, FOUR)
    return folder


def there(keys, trusted=lambda name: TRUSTED, overrides=INSIDE, **more):
    return with_keys(keys, SMALL | overrides, sites=FOUR, trusted=trusted, **more)


def away(keys, transport, out, overrides=INSIDE, **how):
    experiment = Experiment.of(None, **(SMALL | overrides))
    return run_at_sites(transport, experiment, out, 4, credentials=Credentials.load(keys / "server"), **how)


def selected(run):
    return [[c for s in e["steps"] for c in s["clients"]] for e in run.events() if e["event"] == "round"]


def test_sites_tell_the_enclave_and_the_server_hears_nothing_of_it(tmp_path, keys):
    heard = []

    def watched(name, kind, reply):
        heard.append((name, kind, reply))
        return reply

    transport = there(keys, tamper=watched)
    with pytest.warns(InsecureWarning):
        run = away(keys, transport, tmp_path / "there")
    here = train(overrides=SMALL | INSIDE, out=tmp_path / "here")
    assert selected(run) == selected(here)
    assert float((model(run) - model(here)).abs().max()) < 1e-9
    for name, kind, reply in heard:
        counts = transport.hosts[name].load().counts[0].astype("<i8")
        assert counts.tobytes() not in reply
        assert kind != "introduce" or b'"counts": null' in reply
    said = run.summary["privacy"]
    assert any("which every site verified itself" in text for text in said["server"])
    assert [e["what"] for e in run.events() if e["event"] == "insecure"] == ["privacy.enclave.attestation"]


@pytest.mark.parametrize(
    ("pinned", "why"),
    [
        (None, "has not said which enclave it may trust"),
        (EnclaveChoice(), "has not said which enclave it may trust"),
        (EnclaveChoice(attestation="dev-insecure"), "was not allowed"),
        (EnclaveChoice(attestation="dev-insecure", allow_insecure=True, measurement="ab" * 48), "runs other code"),
        (EnclaveChoice(measurement="ab" * 48), "'sev-snp' is asked for"),
        (EnclaveChoice(attestation="dev-insecure", allow_insecure=True, noise=0.5), "wants at least 0.5"),
    ],
    ids=["nothing", "defaults", "insecure", "other code", "hardware", "noise"],
)
def test_a_site_tells_no_enclave_but_the_one_it_pinned(tmp_path, keys, pinned, why):
    told = []

    def watched(name, kind, reply):
        told.extend([name] if kind == "enclave" else [])
        return reply

    with pytest.raises(RequestError, match=f"site bonn: .*{why}"):
        away(keys, there(keys, lambda name: pinned if name == "bonn" else TRUSTED, tamper=watched), tmp_path / "run")
    assert told.count("bonn") <= 2  # hello, and the offer that it refuses
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change", [{"clients": 5}, {"classes": 3}, {"rounds": 0}, {"flips": {"clusters": -1}}], ids=str
)
def test_terms_of_another_run_are_refused(tmp_path, keys, monkeypatch, change):
    """The evidence is bound to the terms; so a site reads them."""
    build = enclave.to_json

    def lying(values):
        return build(values | {"terms": json.dumps(json.loads(values["terms"]) | change)})

    monkeypatch.setattr(enclave, "to_json", lying)
    with pytest.raises(RequestError, match="the terms of the enclave"):
        away(keys, there(keys), tmp_path / "run")


def test_terms_that_the_service_was_not_told_are_found_out(tmp_path, keys, monkeypatch):
    build = enclave.to_json
    monkeypatch.setattr(
        enclave, "to_json", lambda told: build(told | {"terms": json.dumps(json.loads(told["terms"]) | {"noise": 0.9})})
    )
    with pytest.raises(RequestError, match="made for another key or another party"):
        away(keys, there(keys), tmp_path / "run")


@pytest.mark.extended
def test_a_run_goes_on_with_a_fresh_enclave_that_selects_the_same(tmp_path, keys):
    """Also where picks are exchanged at random: by a secret that sites have of the run, and no server."""
    noisy = INSIDE | {"privacy.enclave.noise": 0.5, "train.rounds": 9}
    before = []

    def watch(event):
        if event["event"] == "round":
            before.append([c for s in event["steps"] for c in s["clients"]])
            if event["round"] == 7:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        away(keys, there(keys, overrides=noisy), tmp_path / "run", noisy, watch=watch)
    run = away(keys, there(keys, overrides=noisy), tmp_path / "run", noisy, resumed=True)
    assert selected(run)[:7] == before
    assert selected(run) != selected(train(overrides=SMALL | noisy, out=tmp_path / "here")), "whose seed all know"


@pytest.mark.extended
def test_masked_labels_go_with_an_enclave(tmp_path, keys):
    run = away(keys, there(keys), tmp_path / "run", INSIDE | {"privacy.labels": "prf", "train.rounds": 2})
    assert np.isfinite(run.summary["accuracy"])
    assert len(selected(run)) == 2

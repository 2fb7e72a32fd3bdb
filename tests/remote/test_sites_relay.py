"""Chains at real sites: models pass the server sealed, and what becomes of a chain whose sites fail."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from tempfile import TemporaryDirectory

import pytest
import torch
from in_process_sites import SITES, SMALL, Here, hosts, model

from fedstrata import RequestError, train
from fedstrata.client.site_client import Site
from fedstrata.config.experiment import Experiment
from fedstrata.core.messages import fast_replace, tensor_bytes
from fedstrata.core.rng import Streams
from fedstrata.core.wire import pack, pack_report, unpack, unpack_report, unpack_task
from fedstrata.data.devices import Devices
from fedstrata.deploy.keys import make
from fedstrata.privacy.envelopes import ENVELOPE, Letterbox, SpoiltError, job_of
from fedstrata.privacy.frames import RefusedError, open_frame
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import build_request, split, within
from fedstrata.remote.server.session import run_at_sites

SFL = SMALL | {"method.name": "sfl", "train.rounds": 2}
CHAINS = {
    "sfl": {"method.name": "sfl"},
    "sfl with batch norm": {"method.name": "sfl", "model.name": "mlp", "model.norm": "batch"},
    "sfl with momentum that travels": {
        "method.name": "sfl",
        "train.optimizer.momentum": 0.9,
        "train.optimizer.state": "carried",
    },
    "sfl with a probe before each chain": {
        "method.name": "sfl",
        "method.selector": "power-of-choice",
        "train.clients_per_round": 2,
    },
    "stratify-single": {"method.name": "stratify-single", "train.rounds": 2, "method.schedule.length": 40},
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "all"
    make(folder, SITES)
    return folder


class Watched(Here):
    """Writes down everything that passes; `answer(name, kind, number, request)` may answer in a site's place.

    `number` counts requests of the kind, from 1, over all sites. Whoever gives `...` lets the site answer.
    """

    def __init__(self, hosts, answer=lambda name, kind, number, request: ...):
        super().__init__(hosts)
        self.answer, self.passed, self.counts = answer, [], {}

    def exchange(self, requests, deadline=None, enough=None):
        told = {}
        for name, request in requests.items():
            inner = split(request)[2] if split(request)[0] == b"in" else request
            kind = split(inner)[0].decode()
            self.counts[kind] = self.counts.get(kind, 0) + 1
            reply = self.answer(name, kind, self.counts[kind], inner)
            reply = self.hosts[name].answer(request) if reply is ... else reply
            self.passed.append((name, kind, inner, reply))
            if reply is not None:
                told[name] = reply
        return told


def sealed(tmp_path, keys, overrides, answer=lambda name, kind, number, request: ..., **how):
    transport = Watched(hosts(overrides, lambda name: Credentials.load(keys / "sites" / name)), answer)
    experiment, credentials = Experiment.of(None, **overrides), Credentials.load(keys / "server")
    return run_at_sites(
        transport, experiment, tmp_path / "sites", len(SITES), credentials=credentials, **how
    ), transport


def said(run, kind):
    return [e for e in run.events() if e["event"] == kind]


@pytest.mark.parametrize("name", CHAINS)
def test_a_sealed_chain_gives_the_same_model_as_one_machine(tmp_path, keys, name):
    overrides = SMALL | CHAINS[name]
    here = train(overrides=overrides, out=tmp_path / "here")
    there, transport = sealed(tmp_path, keys, overrides)
    assert transport.counts["hand_on"] > 1
    assert float((model(here) - model(there)).abs().max()) < 1e-9
    assert there.summary["accuracy"] == pytest.approx(here.summary["accuracy"], abs=1e-12)
    assert not [e for e in said(there, "fallback") if "chain" in e["what"] or "site to site" in e["what"]]
    for one, other in zip(said(here, "round"), said(there, "round"), strict=True):
        assert other["update_norm"] == (
            None if one["update_norm"] is None else pytest.approx(one["update_norm"], rel=1e-9)
        )
    envelopes = [len(split(reply)[1]) for _, kind, _, reply in transport.passed if kind == "hand_on"]
    hellos = [len(split(reply)[1]) for _, kind, _, reply in transport.passed if kind == "hello"]
    assert there.summary["bytes_p2p"] == here.summary["bytes_p2p"]
    assert there.summary["bytes_up"] == here.summary["bytes_up"] + sum(envelopes) + sum(hellos)
    asked = [len(request) for _, kind, request, _ in transport.passed if kind == "hand_on"]
    hops = [unpack_task(split(request)[1]).down for _, kind, request, _ in transport.passed if kind == "hop"]
    beyond = [length - tensor_bytes(hops[0]) for length in envelopes]  # a model, which the loop counts for every hop
    assert there.summary["bytes_down"] == here.summary["bytes_down"] + sum(asked) + sum(beyond)


def test_the_server_sees_the_model_that_a_chain_ends_with_and_no_other(tmp_path, keys, monkeypatch):
    trained, train_here = [], Site.answer

    def looked_at(self, *task):
        reply = train_here(self, *task)
        trained.append(unpack_report(reply).aggregated["update"])
        return reply

    monkeypatch.setattr(Site, "answer", looked_at)
    _, transport = sealed(tmp_path, keys, SFL | {"train.rounds": 1})
    passed = b"".join(part for _, _, request, reply in transport.passed for part in (request, reply))
    request = next(request for _, kind, request, _ in transport.passed if kind == "hop")
    start = unpack_task(split(request)[1]).down["params"]
    one, two, three = trained
    assert (start + one + two + three).numpy().tobytes() in passed  # the search finds what is there
    moved = (one != 0) & (two != 0) & (three != 0)
    for tensor in (one, two, three, one + two, start + one, start + one + two):
        numbers = tensor[moved].numpy()
        assert len(numbers) > 400
        assert not any(number.tobytes() in passed for number in numbers[::20])


# ---- sites that fail ------------------------------------------------------------------------------------------------


def order(overrides):
    """Return the names of the sites of every round, in the order in which the chain client updates them."""
    seed, rounds = Experiment.of(None, **overrides).train.seed, Experiment.of(None, **overrides).train.rounds
    return [[SITES[i] for i in Streams(seed)("chain", round=r).permutation(len(SITES))] for r in range(rounds)]


@cache
def without(*hops, seed=0):
    """Return the model of a chain on one machine in which these hops, counted from 1 over the run, are lost."""
    seen = 0

    def lost(self, view, turn, step, reports):
        nonlocal seen
        seen += 1
        return {r.client for r in reports} if seen in hops else set()

    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(Devices, "find_lost", lost)
        return model(train(overrides=SFL | {"train.seed": seed}, out=f"{folder}/here"))


def silent(*hops):
    return lambda name, kind, number, request: None if (kind, number) in [("hop", hop) for hop in hops] else ...


@pytest.mark.parametrize("hop", [1, 2])
def test_a_chain_goes_on_from_the_predecessor_of_a_site_that_dies(tmp_path, keys, hop):
    run, _ = sealed(tmp_path, keys, SFL, silent(hop))
    assert [e["why"] for e in said(run, "dropped")] == ["no answer"]
    assert not said(run, "fallback")
    assert float((model(run) - without(hop)).abs().max()) < 1e-9


def test_what_a_chain_trained_is_not_lost_with_its_last_site(tmp_path, keys):
    run, _ = sealed(tmp_path, keys, SFL, silent(3))
    (event,) = said(run, "fallback")
    assert event["round"] == 1
    assert f"goes on from what site {order(SFL)[0][1]} holds" in event["why"]
    assert float((model(run) - without(3)).abs().max()) < 1e-9


def test_a_report_that_the_simulated_network_loses_is_passed_over(tmp_path, keys):
    overrides = SFL | {"system.stragglers.rate": 0.4, "train.rounds": 3}
    here = train(overrides=overrides, out=tmp_path / "here")
    run, _ = sealed(tmp_path, keys, overrides)
    assert [e["clients"] for e in said(run, "dropped")] == [e["clients"] for e in said(here, "dropped")] != []
    assert {e["step"] for e in said(run, "dropped")} == {0, 1, 2}  # the first, the middle and the last hop
    assert float((model(run) - model(here)).abs().max()) < 1e-9


def test_a_chain_goes_back_to_who_can_still_hand_it_on(tmp_path, keys):
    """The second site reports, and is gone when it should hand on: the first one still holds its model."""
    gone = order(SFL)[0][1]

    def answer(name, kind, number, request):
        return None if kind == "hand_on" and name == gone and number < 4 else ...

    run, transport = sealed(tmp_path, keys, SFL, answer)
    (event,) = said(run, "fallback")
    assert gone in event["why"]
    assert order(SFL)[0][0] in event["used"]
    assert transport.counts["hand_on"] == 5
    assert float((model(run) - without(2)).abs().max()) < 1e-9


def restarted(tmp_path, keys, when):
    """Make a run in which the site that gets a request, the n-th of its kind, was restarted just before."""
    old, new = (hosts(SFL, lambda name: Credentials.load(keys / "sites" / name)) for _ in range(2))

    def answer(name, kind, number, request):
        if (kind, number) == when:
            old[name] = new[name]
        return ...

    experiment, credentials = Experiment.of(None, **SFL), Credentials.load(keys / "server")
    return run_at_sites(Watched(old, answer), experiment, tmp_path / "sites", len(SITES), credentials=credentials)


def test_a_site_that_was_restarted_says_hello_again(tmp_path, keys):
    run = restarted(tmp_path, keys, ("hop", 5))
    assert not said(run, "dropped")
    assert float((model(run) - without()).abs().max()) < 1e-9


def test_a_site_that_was_restarted_holds_nothing_and_the_chain_goes_back(tmp_path, keys):
    run = restarted(tmp_path, keys, ("hand_on", 2))
    assert "holds no model" in said(run, "site_refused")[0]["why"]
    assert order(SFL)[0][0] in said(run, "fallback")[0]["used"]
    assert float((model(run) - without(2)).abs().max()) < 1e-9


def test_a_site_follows_itself_and_nothing_is_sent(tmp_path, keys):
    overrides = SFL | {"train.seed": 1}
    (_, holder, _), (first, _, _) = order(overrides)
    assert holder == first
    run, transport = sealed(tmp_path, keys, overrides, silent(3))
    assert transport.counts["hand_on"] == 4  # twice a round, although the first hop of the second goes on from a site
    assert float((model(run) - without(3, seed=1)).abs().max()) < 1e-9


def test_a_hop_that_is_not_finite_is_passed_over(tmp_path, keys, monkeypatch):
    train_here, seen = Site.answer, []

    def broken(self, *task):
        reply = train_here(self, *task)
        seen.append(self.client.id)
        if len(seen) != 2:
            return reply
        report = unpack_report(reply)
        aggregated = {name: tensor * torch.nan for name, tensor in report.aggregated.items()}
        return pack_report(fast_replace(report, aggregated=aggregated, finite=False))

    monkeypatch.setattr(Site, "answer", broken)
    run, _ = sealed(tmp_path, keys, SFL)
    assert [e["why"] for e in said(run, "dropped")] == ["not finite"]
    monkeypatch.undo()
    assert float((model(run) - without(2)).abs().max()) < 1e-9


def test_a_chain_that_ends_with_what_cannot_be_a_model_is_dropped_whole(tmp_path, keys, monkeypatch):
    """Nobody can tell which of its sites spoilt it; the next chain begins with the server's model."""
    train_here, seen = Site.answer, []

    def huge(self, *task):
        reply = train_here(self, *task)
        seen.append(self.client.id)
        report = unpack_report(reply)
        aggregated = {name: tensor * 1e12 for name, tensor in report.aggregated.items()}
        return pack_report(fast_replace(report, aggregated=aggregated)) if len(seen) == 2 else reply

    monkeypatch.setattr(Site, "answer", huge)
    run, _ = sealed(tmp_path, keys, SFL)
    assert [e["why"] for e in said(run, "fallback")] == ["what this chain ended with was refused"]
    assert "no training gives" in said(run, "site_refused")[0]["why"]
    monkeypatch.undo()
    assert float((model(run) - without(1, 2, 3)).abs().max()) < 1e-9


def test_a_sealed_chain_goes_on_where_the_server_stopped(tmp_path, keys):
    credentials = Credentials.load(keys / "server")
    transport, experiment = (
        Here(hosts(SFL, lambda name: Credentials.load(keys / "sites" / name))),
        Experiment.of(None, **SFL),
    )

    def watch(event):
        if event["event"] == "round" and event["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_at_sites(transport, experiment, tmp_path / "cut", len(SITES), credentials=credentials, watch=watch)
    run = run_at_sites(transport, experiment, tmp_path / "cut", len(SITES), credentials=credentials, resumed=True)
    assert float((model(run) - without()).abs().max()) < 1e-9


SPOILT = {
    "not finite": {"params": lambda t: t * torch.nan},
    "another shape": {"params": lambda t: t[:-1]},
    "not in torch.float64": {"params": lambda t: t.float()},
}


@pytest.mark.parametrize("why", SPOILT)
def test_a_site_refuses_what_cannot_be_a_model_and_the_chain_goes_back(tmp_path, keys, monkeypatch, why):
    seal, seen = Letterbox.seal, []

    def spoilt(self, text, *more):
        header, held = unpack(text)
        seen.append(text)
        if len(seen) == 2:
            text = pack(header, {name: SPOILT[why][name](t) for name, t in held.items()})
        return seal(self, text, *more)

    monkeypatch.setattr(Letterbox, "seal", spoilt)
    run, _ = sealed(tmp_path, keys, SFL)
    (event,) = said(run, "fallback")
    assert why in event["why"]
    monkeypatch.undo()
    assert float((model(run) - without(2)).abs().max()) < 1e-9


# ---- a server that does not keep to it ------------------------------------------------------------------------------


def tampered_with(tmp_path, keys, tamper):
    """Let the server change the second envelope that it carries; give why the site refused it."""
    envelopes = []

    def answer(name, kind, number, request):
        if kind != "hop":
            return ...
        _, task, about, envelope = split(request)
        if envelope:
            envelopes.append(envelope)
        if len(envelopes) != 2 or not envelope:
            return ...
        host = transport_hosts[name]
        return host.answer(within(host._session.run, build_request("hop", task, *tamper(about, envelopes))))

    transport = Watched(hosts(SFL, lambda name: Credentials.load(keys / "sites" / name)), answer)
    transport_hosts, credentials = transport.hosts, Credentials.load(keys / "server")
    run = run_at_sites(transport, Experiment.of(None, **SFL), tmp_path / "sites", len(SITES), credentials=credentials)
    assert run.summary["rounds"] == 2
    return said(run, "site_refused")[0]["why"]


def flipped(envelope):
    return envelope[:-100] + bytes([envelope[-100] ^ 1]) + envelope[-99:]


TAMPERED = {
    "a changed one": (lambda about, had: (about, flipped(had[1])), "not signed by its sender"),
    "that of another step": (lambda about, had: (about, had[0]), "has the job"),
    "none at all": (lambda about, had: (about, b""), "cut off"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_site_refuses_an_envelope_that_is_not_for_this_hop(tmp_path, keys, name):
    tamper, why = TAMPERED[name]
    assert why in tampered_with(tmp_path, keys, tamper)


def test_a_server_cannot_pass_a_site_off_as_another(tmp_path, keys):
    """The about of a hop says who held the model; the envelope says who signed it."""

    def tamper(about, had):
        told = json.loads(about)
        return json.dumps({**told, "holder": (told["holder"] + 1) % 3}).encode(), had[1]

    assert any(why in tampered_with(tmp_path, keys, tamper) for why in ("has the sender", "holds no model"))


def parties(count=3):
    server, clients = Identity.new(os.urandom), [Identity.new(os.urandom) for _ in range(count)]
    key_directory = KeyDirectory.of(server, clients)
    return key_directory, clients, [Letterbox(i, client, key_directory, "run") for i, client in enumerate(clients)]


def test_a_letter_reaches_its_receiver_once_and_nobody_else():
    key_directory, clients, (a, b, c) = parties()
    job = job_of("run", 1, 2)
    letter = a.seal(b"a model", 1, b.hello(), job)
    assert b"a model" not in letter
    assert b.open(letter, 0, job) == b.open(letter, 0, job) == b"a model"
    for who, why in ((c, "not for party 2"), (a, "not for party 0")):
        with pytest.raises(RefusedError, match=why):
            who.open(letter, 0, job)
    with pytest.raises(RefusedError, match="the job"):
        b.open(letter, 0, job_of("run", 1, 3))
    with pytest.raises(RefusedError, match="the job"):
        b.open(letter, 0, job_of("another run", 1, 2))
    with pytest.raises(RefusedError, match="the sender"):
        b.open(letter, 2, job)
    restarted = Letterbox(1, clients[1], key_directory, "run")
    with pytest.raises(RefusedError, match="before it was restarted"):
        restarted.open(letter, 0, job)
    b.used(letter, 0, job)
    with pytest.raises(RefusedError, match="came twice"):
        b.open(letter, 0, job)


def test_every_bit_of_a_letter_counts():
    _, _, (a, b, _) = parties()
    job = job_of("run", 0, 1)
    letter = a.seal(b"x" * 20, 1, b.hello(), job)
    for at in range(len(letter)):
        with pytest.raises(RefusedError):
            b.open(letter[:at] + bytes([letter[at] ^ 4]) + letter[at + 1 :], 0, job)


def test_letters_are_sealed_for_parties_of_the_roll_only():
    key_directory, clients, (a, b, c) = parties()
    job = job_of("run", 0, 1)
    stranger = Letterbox(1, Identity.new(os.urandom), key_directory, "run")
    with pytest.raises(RefusedError, match="not signed"):
        a.seal(b"a model", 1, stranger.hello(), job)
    with pytest.raises(RefusedError, match="the sender"):
        a.seal(b"a model", 1, c.hello(), job)
    with pytest.raises(RefusedError, match="the job"):
        a.seal(b"a model", 1, Letterbox(1, clients[1], key_directory, "another run").hello(), job)
    with pytest.raises(RefusedError, match="not signed"):
        b.open(Letterbox(0, Identity.new(os.urandom), key_directory, "run").seal(b"a model", 1, b.hello(), job), 0, job)


def test_a_letter_that_was_sealed_wrongly_is_its_senders_fault():
    key_directory, clients, (a, b, _) = parties()
    job = job_of("run", 0, 1)
    frame = open_frame(a.seal(b"a model", 1, b.hello(), job), key_directory, ENVELOPE, job, 0)
    *kept, sealed_text = frame.fields
    spoilt = sealed_text[:-1] + bytes([sealed_text[-1] ^ 1])
    with pytest.raises(SpoiltError):
        b.open(replace(frame, fields=(*kept, spoilt)).sign(clients[0]), 0, job)


# ---- where models cannot be sealed ----------------------------------------------------------------------------------


def test_without_keys_models_pass_openly_and_an_event_says_so(tmp_path):
    experiment = Experiment.of(None, **(SFL | {"train.rounds": 1}))
    run = run_at_sites(Here(hosts(SFL)), experiment, tmp_path / "open", 3)
    assert "no keys" in said(run, "fallback")[0]["why"]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"method.corrections": ["scaffold"]}, "something of scaffold"),
        ({"method.combiner": "median"}, "acts on what every hop sends"),
    ],
)
def test_where_the_server_must_read_models_it_does_and_says_so(tmp_path, keys, overrides, why):
    overrides = SFL | {"train.rounds": 1} | overrides
    here = train(overrides=overrides, out=tmp_path / "here")
    run, transport = sealed(tmp_path, keys, overrides)
    assert why in said(run, "fallback")[0]["why"]
    assert "hop" not in transport.counts
    assert float((model(run) - model(here)).abs().max()) < 1e-9


def test_a_site_without_keys_is_refused_where_the_server_has_some(tmp_path, keys):
    with pytest.raises(RequestError, match="has no keys"):
        run_at_sites(
            Here(hosts(SFL)),
            Experiment.of(None, **SFL),
            tmp_path / "run",
            3,
            credentials=Credentials.load(keys / "server"),
        )

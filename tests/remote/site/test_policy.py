"""Every rule of a site's policy: refused at the site, named at the server, and the run goes on where it can."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from in_process_sites import SITES, SMALL, Here, hosts, introduce, with_keys
from vision import load_timm

from fedstrata import RequestError
from fedstrata.config.build import build_plan, count_parameters
from fedstrata.config.experiment import Experiment
from fedstrata.config.needs import needs_of
from fedstrata.config.travel import to_sites
from fedstrata.core import registry
from fedstrata.deploy.keys import make
from fedstrata.privacy.accounting import Accountant
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.flower.invitation import STREAM
from fedstrata.remote.flower.joining import with_stream
from fedstrata.remote.protocol import (
    PendingError,
    PolicyError,
    SiteError,
    build_request,
    read_reply,
    split,
    to_json,
    within,
)
from fedstrata.remote.server.session import run_at_sites
from fedstrata.remote.site.policy.approvals import Approvals
from fedstrata.remote.site.policy.gate import PolicyGate
from fedstrata.remote.site.policy.hours import Hours
from fedstrata.remote.site.policy.resources import environment, keep_to
from fedstrata.remote.site.policy.rules import Resources, SitePolicy, read_policy
from fedstrata.testing import tiny_federation

ONE = {"train.rounds": 1}
FLIPS = {"method.name": "flips"}  # needs label counts


def policy(text: str, tmp_path) -> SitePolicy:
    """Read a policy as a site's owner writes it."""
    (tmp_path / "site.toml").write_text(text)
    return read_policy(tmp_path / "site.toml")


def ruled(rules: SitePolicy, overrides=SMALL, names=("bonn",), **how):
    """Return sites of which some have rules."""
    return Here(hosts(overrides, policy=lambda name: rules if name in names else None, **how))


def run(transport, tmp_path, overrides, sites=3, **how):
    experiment = Experiment.of(None, **SMALL | overrides)
    return run_at_sites(transport, experiment, tmp_path / "run", sites, **how)


def refusals(run, kind="site_refused"):
    return [event for event in run.events() if event["event"] == kind]


# ---- what is refused when a run is proposed --------------------------------------------------------------------------

REFUSED = {
    'methods = ["fedprox", "flips"]': ({}, 'method.name = "fedavg"; allowed: "fedprox", "flips"'),
    'methods = ["fedavg"]': (
        {"method.corrections": [{"kind": "scaffold"}]},
        'method.corrections.0.kind = "scaffold"; allowed: nothing',
    ),
    'methods = ["fedavg"]\nparts = ["corrections.prox"]': (
        {"method.selector": "power-of-choice"},
        'method.selector.kind = "power-of-choice"; allowed: "random"',
    ),
    'models = ["lenet5"]': ({}, 'model.name = "mlp"; allowed: "lenet5"'),
    '[privacy]\naggregate = "masked"': ({}, 'privacy.aggregate = "open"; allowed: "masked"'),
    '[privacy]\nlabels = "prf"': ({}, 'privacy.labels = "none"; allowed: "prf"'),
    "[privacy]\nepsilon = 1.0": ({}, "its policy wants noise on updates: set privacy.dp.noise"),
    "[privacy]\nepsilon = 2.0": (
        {"method.combiner": "uniform", "privacy.dp.noise": 1.0},
        'privacy.dp.where = "server"; allowed: "local"',
    ),
    "[limits]\nparameters = 600": ({}, "a model of 610 parameters; allowed: at most 600"),
    '[privacy]\ncounts = "none"': ({"method.name": "flips"}, "tells nobody how many samples of a label it has"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_run_that_the_rules_do_not_allow_goes_on_without_the_site_and_says_so(tmp_path, text):
    overrides, why = REFUSED[text]
    transport = ruled(policy(text, tmp_path))
    with pytest.raises(RequestError, match="site bonn") as error:
        run(transport, tmp_path, ONE | overrides)
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
    said = []
    done = run(transport, tmp_path, ONE | overrides, sites=2, say=said.append)
    (event,) = refusals(done)
    assert (event["site"], event["round"]) == ("bonn", 0)
    assert why in event["why"]
    assert said == ([] if "counts" in text else [f"bonn: {event['why']}"])  # those are asked for later
    assert done.summary["rounds"] == 1


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("", {}),
        ('methods = ["fedavg"]', {}),
        ('methods = ["fedavg"]\nparts = ["corrections.prox"]', {"method.corrections": [{"kind": "prox"}]}),
        ('methods = ["fedavg", "fedprox"]', {"method.corrections": [{"kind": "prox"}]}),
        ('models = ["mlp"]\n[limits]\nparameters = 700', {}),
        ('[privacy]\ncounts = "none"', {}),
    ],
)
def test_what_the_rules_allow_is_done(tmp_path, text, overrides):
    done = run(ruled(policy(text, tmp_path)), tmp_path, ONE | overrides)
    assert not refusals(done)
    assert [len(step["clients"]) for step in refusals(done, "round")[0]["steps"]] == [3]


def test_masks_and_masked_labels_satisfy_a_policy_that_wants_them(tmp_path):
    make(tmp_path / "keys", SITES)
    rules = policy('[privacy]\naggregate = "masked"\nlabels = "prf"\n', tmp_path)
    wish = ONE | {"privacy.aggregate": "masked", "privacy.labels": "prf"}
    transport = with_keys(tmp_path / "keys", SMALL | wish, policy=lambda name: rules)
    done = run(transport, tmp_path, wish, credentials=Credentials.load(tmp_path / "keys/server"))
    assert done.summary["rounds"] == 1
    assert not refusals(done)


# ---- what a hostile server does behind the back of its own checks ----------------------------------------------------


def asked(host, request, fields=1):
    return read_reply(host.answer(request), fields)


def test_a_run_cannot_become_another_one_after_it_was_admitted(tmp_path):
    host = ruled(policy('[privacy]\naggregate = "masked"', tmp_path)).hosts["bonn"]
    place = {"run": "r", "client": 1, "sites": list(SITES), "classes": list(range(10)), "speed": 1.0}
    proposed = {**SMALL, "privacy.aggregate": "masked"}
    asked(host, introduce(proposed))
    with pytest.raises(PolicyError, match=r'privacy\.aggregate = "open"'):
        asked(host, build_request("begin", to_json(place), to_json(to_sites(Experiment.of(None, **SMALL)))))


def test_labels_and_counts_are_not_told_to_a_server_that_said_they_are_masked(tmp_path):
    host = ruled(policy('[privacy]\nlabels = "prf"', tmp_path)).hosts["bonn"]
    masked = {**SMALL, "privacy.labels": "prf"}
    (told,) = asked(host, introduce(masked, named=True))
    assert json.loads(told)["classes"] is None
    with pytest.raises(Exception, match="labels are not counted by name"):
        asked(host, introduce(masked, needs=["counts"]))


def test_labels_are_counted_for_methods_that_need_it_and_with_the_run_s_own_noise(tmp_path):
    """Whatever rules a site has: the run that its owner knows of says which counts it takes, and how they are told."""
    host = hosts(SMALL)["bonn"]
    with pytest.raises(SiteError, match="does not need it"):
        asked(host, introduce(needs=["counts"]))
    assert json.loads(asked(host, introduce(SMALL | FLIPS, needs=["counts"]))[0])["counts"]
    noised = {**FLIPS, "privacy.clustering": "masked", "privacy.histogram_epsilon": 0.5}
    asked(host, introduce(SMALL | noised))
    for kind, fields, why in [
        ("cluster", (to_json({"epsilon": None}), b""), r"the noise of this run's privacy\.histogram_epsilon"),
        ("cluster", (to_json({"epsilon": 50.0}), b""), r"the noise of this run's privacy\.histogram_epsilon"),
        ("enclave", (b"hello", b"{}"), "not clustered that way"),
        ("labels", (b"keys", b"{}", b""), "labels are not masked in this run"),
    ]:
        with pytest.raises(SiteError, match=why):
            asked(host, within("r", build_request(kind, *fields)))


@pytest.mark.parametrize("name", sorted(set(registry.names("methods")) - {"strata", "fedtan"}))
def test_a_site_knows_what_a_method_needs_without_its_plan(name):
    for labels in ("none", "prf"):
        experiment = Experiment.of({"method": {"name": name}, "privacy": {"labels": labels}})
        assert needs_of(experiment) == build_plan(experiment, tiny_federation()).needs


def test_parts_that_show_updates_are_refused_under_masks_at_the_site_too(tmp_path):
    make(tmp_path / "keys", SITES)
    rules = policy('[privacy]\naggregate = "masked"', tmp_path)
    host = with_keys(tmp_path / "keys", SMALL, policy=lambda name: rules).hosts["bonn"]
    place = {"run": "r", "client": 1, "sites": list(SITES), "classes": list(range(10)), "speed": 1.0}
    for overrides in ({"method.selector": "hics"}, {"method.combiner": "median"}):
        experiment = Experiment.of(None, **SMALL, **overrides, **{"privacy.aggregate": "masked"})
        with pytest.raises(Exception, match="looks at single updates"):
            asked(host, build_request("begin", to_json(place), to_json(to_sites(experiment))))


@pytest.mark.parametrize("kind", ["labels", "meet", "cluster", "centres", "renumber", "task", "evaluate", "sum", "hop"])
def test_nothing_is_done_for_a_run_that_was_not_admitted(tmp_path, kind):
    host = hosts(SMALL)["bonn"]
    for request in (build_request(kind, b"{}"), within("other", build_request(kind, b"{}"))):
        assert split(host.answer(request))[0] == b"absent"


# ---- largest model ---------------------------------------------------------------------------------------------------


def test_a_model_that_is_too_large_is_refused_before_it_takes_memory(tmp_path):
    transport = ruled(policy("[limits]\nparameters = 1000", tmp_path))
    with pytest.raises(
        RequestError, match=r"site bonn: its policy refuses a model of 2\d+ parameters; allowed: .* 1000"
    ):
        run(transport, tmp_path, ONE | {"model.hidden": (30,)})
    place = {"run": "r", "client": 1, "sites": list(SITES), "classes": list(range(10)), "speed": 1.0}
    vast = to_sites(Experiment.of(None, **SMALL | {"model.hidden": (10**7, 10**7)}))
    with pytest.raises(PolicyError, match="a model of 100000"):
        asked(transport.hosts["bonn"], build_request("begin", to_json(place), to_json(vast)))


@pytest.mark.parametrize("name", sorted(registry.names("models")))
def test_every_model_can_be_counted_without_being_made(name):
    if name == "timm" and not load_timm():
        pytest.skip("timm is not installed")
    choice = Experiment.of({"model": {"name": name}}).model
    for shape in ((3, 32, 32), (1, 28, 28), (8, 8), (64,), (128, 9)):
        try:
            network = registry.build("models", name, choice.model_extra or {}, "model").build(shape, 10)
        except Exception:  # it is for samples of another shape
            continue
        assert count_parameters(choice, shape, 10) == sum(p.numel() for p in network.parameters())
        return
    pytest.fail("no shape fits")


# ---- rounds, updates, hours ------------------------------------------------------------------------------------------


def test_rounds_of_a_day_are_counted_over_runs_and_restarts(tmp_path, monkeypatch):
    rules = policy("[limits]\nrounds_per_day = 2", tmp_path)
    transport = ruled(rules, memory=tmp_path / "memory")
    first = run(transport, tmp_path / "1", {"train.rounds": 3})
    (event,) = refusals(first)
    assert (event["site"], event["round"]) == ("bonn", 3)
    assert "it took part in 2 rounds in the last 24 hours" in event["why"]
    again = ruled(rules, memory=tmp_path / "memory")  # its process was started again
    assert len(refusals(run(again, tmp_path / "2", ONE))) == 1
    later = PolicyGate.clock(again.hosts["bonn"]._gate) + timedelta(days=1, minutes=1).total_seconds()
    monkeypatch.setattr(PolicyGate, "clock", lambda gate: later)
    assert not refusals(run(again, tmp_path / "3", ONE))


def test_updates_of_a_day_are_counted_also_within_a_round(tmp_path):
    rules = policy("[limits]\nupdates_per_day = 2", tmp_path)
    wish = {"method.name": "stratify-batch", "method.schedule.length": 100, "train.batch_size": 20}
    done = run(ruled(rules, SMALL | wish), tmp_path, ONE | wish)
    assert {event["site"] for event in refusals(done)} == {"bonn"}
    assert "it has made 2 updates" in refusals(done)[0]["why"]


def test_outside_of_its_hours_a_site_does_nothing_and_comes_back(tmp_path, monkeypatch):
    rules, now = policy('hours = ["mon-fri 20:00-06:00"]', tmp_path), [datetime(2026, 11, 16, 12, 0)]
    monkeypatch.setattr(PolicyGate, "now", lambda gate: now[0])
    transport = ruled(rules)
    with pytest.raises(RequestError, match="site bonn: it is outside of its working hours, mon-fri 20:00-06:00"):
        run(transport, tmp_path, ONE)
    now[0] = datetime(2026, 11, 16, 21, 0)

    def watch(event):
        if event["event"] == "round":
            now[0] = datetime(2026, 11, 17, 6 if event["round"] == 1 else 22, 0)

    done = run(transport, tmp_path, {"train.rounds": 3}, watch=watch)
    assert {event["round"] for event in refusals(done)} == {2}
    assert {event["round"] for event in refusals(done, "site_not_scored")} == {2}
    assert [len(e["steps"][0]["clients"]) for e in refusals(done, "round")] == [3, 2, 3]


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("mon-fri 20:00-06:00", ["16 20:00", "17 05:59", "21 03:00"], ["16 19:59", "17 06:00", "16 05:00", "21 21:00"]),
        ("22:00-06:00", ["15 23:00", "21 00:00"], ["16 12:00"]),
        ("sat-sun", ["21 00:00", "22 23:59"], ["20 23:59", "16 00:00"]),
        ("Sat 08:00-12:00", ["21 08:00"], ["21 12:00", "22 09:00"]),
        ("fri-mon 00:00-24:00", ["20 00:00", "16 23:59"], ["17 00:00"]),
    ],
)
def test_hours(text, inside, outside):
    moments = {True: inside, False: outside}
    for holds, times in moments.items():
        for at in times:
            assert Hours.read(text).holds(datetime.strptime(f"2026-11-{at}", "%Y-%m-%d %H:%M")) is holds, at


# ---- budget ----------------------------------------------------------------------------------------------------------


def test_reports_end_when_the_epsilon_of_all_runs_is_spent(tmp_path):
    pytest.importorskip("dp_accounting")
    wish = {"method.combiner": "uniform", "privacy.dp.noise": 4.0, "privacy.dp.where": "local", "train.rounds": 3}
    two, three = (Accountant(4.0, 1e-5, local=True).epsilon(reports) for reports in (2, 3))
    rules = policy(f"[privacy]\nepsilon = {(two + three) / 2}\ndelta = 1e-5", tmp_path)
    first = run(ruled(rules, memory=tmp_path / "memory"), tmp_path / "1", wish | {"train.rounds": 1})
    assert not refusals(first)
    second = run(ruled(rules, memory=tmp_path / "memory"), tmp_path / "2", wish)
    assert [event["round"] for event in refusals(second)] == [2]
    assert [event.get("refused") for event in refusals(second, "round")] == [None, None, {"bonn": 1}]
    assert "its privacy budget is spent: another report makes epsilon" in refusals(second)[0]["why"]


def test_the_budget_is_counted_from_the_ledger_alone(tmp_path):
    """A log that somebody moved away, as a damaged one is, gives no budget back."""
    pytest.importorskip("dp_accounting")
    wish = {"method.combiner": "uniform", "privacy.dp.noise": 4.0, "privacy.dp.where": "local", "train.rounds": 1}
    rules = policy(f"[privacy]\nepsilon = {Accountant(4.0, 1e-5, local=True).epsilon(1) * 1.01}", tmp_path)
    assert not refusals(run(ruled(rules, memory=tmp_path / "memory"), tmp_path / "1", wish))
    (tmp_path / "memory/bonn/audit.jsonl").unlink()
    again = run(ruled(rules, memory=tmp_path / "memory"), tmp_path / "2", wish)
    assert [event["site"] for event in refusals(again)] == ["bonn"]
    assert "its privacy budget is spent" in refusals(again)[0]["why"]


# ---- counts ----------------------------------------------------------------------------------------------------------


def test_counts_are_noised_with_the_site_s_own_epsilon_whatever_a_server_asks_for(tmp_path):
    host = ruled(policy('[privacy]\ncounts = "noised"\ncounts_epsilon = 0.5', tmp_path)).hosts["bonn"]

    def counts(**privacy):
        return json.loads(asked(host, introduce(SMALL | FLIPS | privacy, needs=["counts"]))[0])["counts"]

    true = json.loads(asked(hosts(SMALL)["bonn"], introduce(SMALL | FLIPS, needs=["counts"]))[0])["counts"]
    told = counts()
    assert told != true
    assert told == counts(**{"privacy.histogram_epsilon": 0.7}) == counts(**{"privacy.histogram_epsilon": 0.5})
    with pytest.raises(PolicyError, match=r"privacy\.histogram_epsilon = 0\.5"):
        counts(**{"privacy.histogram_epsilon": 0.1})


def test_a_site_that_hides_counts_is_scored_without_labels(tmp_path):
    done = run(ruled(policy('[privacy]\ncounts = "noised"', tmp_path), names=["aachen"]), tmp_path, ONE)
    (event,) = refusals(done, "not_scored_by_label")
    assert "aachen" in event["why"]
    (scored,) = refusals(done, "round")
    open_run = run(Here(hosts(SMALL)), tmp_path / "open", ONE)
    assert scored["accuracy"] == pytest.approx(refusals(open_run, "round")[0]["accuracy"])
    assert scored["recall"] != refusals(open_run, "round")[0]["recall"]
    alone = run(ruled(policy('[privacy]\ncounts = "none"', tmp_path), names=SITES), tmp_path / "all", ONE)
    assert refusals(alone, "round")[0]["recall"] is None


# ---- approval --------------------------------------------------------------------------------------------------------


def test_a_run_waits_for_the_owner_and_tells_nothing_before(tmp_path):
    rules = policy('approval = "ask"', tmp_path)
    transport, heard, said = ruled(rules, memory=tmp_path / "memory"), [], []
    approvals = transport.hosts["bonn"]._gate._approvals
    transport.tamper = lambda name, kind, reply: heard.append((name, kind, split(reply)[0])) or reply

    def say(line):
        said.append(line)
        (proposal,) = approvals.all()
        assert (proposal.word, proposal.experiment["method"]["name"]) == ("asked", "fedavg")
        approvals.decide(proposal.id[:5], "approved")

    done = run(transport, tmp_path, ONE, say=say)
    assert done.summary["rounds"] == 1
    (event,) = refusals(done, "approval")
    assert said == [event["why"]]
    assert event["why"].startswith("bonn: its owner has to approve this run: fedstrata deploy approve ")
    of_bonn = [(kind, how) for name, kind, how in heard if name == "bonn"]
    assert of_bonn[:2] == [("introduce", b"pending"), ("introduce", b"done")]


def test_an_owner_says_no_also_while_a_run_goes_on(tmp_path):
    rules = policy('approval = "ask"', tmp_path)
    transport = ruled(rules, memory=tmp_path / "memory")
    approvals = transport.hosts["bonn"]._gate._approvals

    def decide(word):
        approvals.decide(approvals.all()[0].id, word)

    def watch(event):
        if event["event"] == "round" and event["round"] == 1:
            decide("refused")

    done = run(transport, tmp_path, {"train.rounds": 2}, say=lambda _: decide("approved"), watch=watch)
    (event,) = refusals(done)
    assert (event["site"], event["round"]) == ("bonn", 2)
    assert "its owner refused this run" in event["why"]


def test_a_run_that_nobody_approves_ends_with_what_to_do(tmp_path):
    transport = ruled(policy('approval = "ask"', tmp_path), memory=tmp_path / "memory")
    with pytest.raises(RequestError, match=r"not approved after 0 seconds \(--wait\): site bonn: .* deploy approve"):
        run(transport, tmp_path, ONE, patience=0)


def test_a_word_holds_for_one_experiment_and_survives_a_restart(tmp_path):
    rules = policy('approval = "ask"', tmp_path)
    host = ruled(rules, memory=tmp_path / "memory").hosts["bonn"]
    assert split(host.answer(introduce()))[0] == b"pending"
    approvals = host._gate._approvals
    approvals.decide(approvals.all()[0].id, "approved")
    again = ruled(rules, memory=tmp_path / "memory").hosts["bonn"]
    assert split(again.answer(introduce()))[0] == b"done"
    assert split(again.answer(introduce(SMALL | {"train.epochs": 100})))[0] == b"pending"
    assert split(again.answer(introduce(run="another")))[0] == b"pending"


def test_an_owner_is_asked_once_where_the_method_chooses_its_parts_later(tmp_path):
    """The word is given before sites have told anything, and holds for the first choice that comes of it."""
    transport, said = ruled(policy('approval = "ask"', tmp_path), memory=tmp_path / "memory"), []
    host = transport.hosts["bonn"]
    approvals = host._gate._approvals

    def say(line):
        said.append(line)
        approvals.decide(approvals.all()[0].id, "approved")

    done = run(transport, tmp_path, ONE | {"method.name": "strata"}, say=say)
    assert done.summary["rounds"] == 1
    assert len(said) == len(approvals.all()) == 1
    name = json.loads((tmp_path / "run/sites.json").read_text())["run"]
    chosen = to_sites(Experiment.of(tmp_path / "run/experiment.toml"))
    assert chosen["method"]["chosen"]
    place = {"run": name, "client": 1, "sites": list(SITES), "classes": list(range(10)), "speed": 1.0}
    again = ruled(policy('approval = "ask"', tmp_path), memory=tmp_path / "memory").hosts["bonn"]
    assert split(again.answer(build_request("begin", to_json(place), to_json(chosen))))[0] == b"done"
    other = {**chosen, "method": {**chosen["method"], "server_step": {"kind": "yogi"}}}
    assert split(again.answer(build_request("begin", to_json(place), to_json(other))))[0] == b"pending"


ALIKE, BEGINNING = {"masked": 9386600, "open": 231289}, "986df5675858"  # found in 15 seconds of one core


def test_two_runs_whose_ids_begin_alike_need_two_words(tmp_path):
    """A server that writes both shows the owner the harmless one."""
    masked, opened = ({"privacy": {"aggregate": how}, "train": {"seed": seed}} for how, seed in ALIKE.items())
    approvals = Approvals(tmp_path)
    with pytest.raises(PendingError, match=f"deploy approve {BEGINNING}"):
        approvals.check("harmless", masked)
    approvals.decide(BEGINNING, "approved")
    approvals.check("harmless", masked)
    with pytest.raises(PendingError, match=f"deploy approve {BEGINNING}"):
        approvals.check("harmless", opened)
    with pytest.raises(RequestError, match=f'there is more than one run "{BEGINNING}" here'):
        approvals.decide(BEGINNING, "approved")


@pytest.mark.parametrize(
    "damage", [b"\xff", b"[" * 100_000, {"word": "yes"}, {"at": None}, {"id": 7}, {"experiment": 1}]
)
def test_a_word_that_cannot_be_read_is_none(tmp_path, damage):
    approvals = Approvals(tmp_path)
    with pytest.raises(PendingError):
        approvals.check("r", {"train": {}})
    (file,) = tmp_path.iterdir()
    file.write_bytes(
        damage if isinstance(damage, bytes) else json.dumps(json.loads(file.read_bytes()) | damage).encode()
    )
    for asked in (lambda: approvals.check("r", {"train": {}}), approvals.all):
        with pytest.raises(RequestError, match="is damaged; remove it, and the run is asked for again"):
            asked()


def test_a_server_cannot_fill_the_disk_with_proposals(tmp_path):
    host = ruled(policy('approval = "ask"', tmp_path), memory=tmp_path / "memory").hosts["bonn"]
    replies = [split(host.answer(introduce(run=f"r{i}"))) for i in range(40)]
    assert [reply[0] for reply in replies] == [b"pending"] * 32 + [b"policy"] * 8
    assert len(list((tmp_path / "memory/bonn/runs").iterdir())) == 32


# ---- servers, resources ----------------------------------------------------------------------------------------------


def test_a_site_goes_to_no_stream_but_its_servers(tmp_path):
    rules = policy('servers = ["fl.example.org", "192.0.2.10:8000"]', tmp_path)
    for address in ("fl.example.org:8001", "FL.example.org:1", "192.0.2.10:8000"):
        rules.check_server(address)
    for address in ("evil.example.org:8001", "192.0.2.10:8001", "[::1]:8001"):
        with pytest.raises(PolicyError, match="its policy refuses servers = "):
            rules.check_server(address)
    SitePolicy().check_server("anywhere:1")
    authority = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    told = {"address": "10.0.0.1:22", "authority": authority, "token": "0" * 64, "site": "a", "run": "r", "grace": 0}
    with pytest.raises(PolicyError, match=r'servers = "10\.0\.0\.1:22"'):
        with_stream(lambda _: b"", rules.check_server)(STREAM + json.dumps(told).encode())


def test_resources_are_set_before_and_inside_the_process(monkeypatch):
    around = environment(Resources(threads=2, gpu=0.0))
    assert (around["OMP_NUM_THREADS"], around["CUDA_VISIBLE_DEVICES"]) == ("2", "")
    assert not environment(Resources())
    told = {}
    monkeypatch.setattr("torch.set_num_threads", lambda n: told.update(threads=n))
    monkeypatch.setattr("resource.setrlimit", lambda what, limits: told.update(memory=limits[0]))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    shares = {}
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", lambda share, i: shares.update({i: share}))
    keep_to(Resources(threads=3, memory_gb=0.5, gpu=0.25))
    assert told == {"threads": 3, "memory": 1 << 29}
    assert shares == {0: 0.25, 1: 0.25}


def test_a_site_s_process_gets_no_more_memory_than_its_owner_gives():
    code = """
import torch
from fedstrata.remote.site.policy.resources import keep_to
from fedstrata.remote.site.policy.rules import Resources

keep_to(Resources(memory_gb=2.0))
torch.zeros(1 << 20)
try:
    torch.zeros(1 << 29, dtype=torch.float64)  # 4 GiB
except RuntimeError as error:
    print("refused:", "allocate" in str(error))
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "refused: True\n"


# ---- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sevrers = []", "sevrers"),
        ('methods = ["fedagv"]', 'methods.0 = "fedagv" is not valid; allowed: names of `fedstrata list methods`'),
        ('parts = ["oort"]', "parts.0"),
        ('servers = ["http://x"]', "servers.0"),
        ('hours = ["mon-fry 10:00-12:00"]', "hours.0"),
        ('hours = ["always"]', "hours.0"),
        ('hours = ["9-17"]', "hours.0"),
        ('hours = ["25:00-26:00"]', "hours.0"),
        ('hours = ["10:00-10:00"]', "hours.0"),
        ('hours = ["10:61-12:00"]', "hours.0"),
        ('approval = "maybe"', 'approval = "maybe" is not valid; allowed: "none" or "ask"'),
        ("[privacy]\nepsilon = 0", "privacy.epsilon = 0"),
        ('[privacy]\nlabels = "ckks-paper"', "privacy.labels"),
        ("[limits]\nrounds_per_day = 0.5", "limits.rounds_per_day = 0.5"),
        ("[resources]\ngpu = 2", "resources.gpu = 2"),
        ("approval = ", "is not valid TOML"),
    ],
)
def test_a_policy_that_is_none_is_refused_with_its_key(tmp_path, text, said):
    with pytest.raises(RequestError) as error:
        policy(text, tmp_path)
    assert said in str(error.value)
    assert "site.toml" in str(error.value)


def test_parts_on_the_command_line_are_import_paths():
    assert read_policy(None, ["mine:Newest"]).import_paths == {"mine:Newest"}
    with pytest.raises(RequestError, match='--allow-part "oort" is not valid'):
        read_policy(None, ["oort"])


def test_a_misspelt_key_is_told_with_what_was_meant(tmp_path):
    (tmp_path / "site.toml").write_text('method = ["scaffold"]')
    with pytest.raises(RequestError, match=r'site\.toml: method is not an option \(did you mean "methods"\?\)'):
        read_policy(tmp_path / "site.toml")

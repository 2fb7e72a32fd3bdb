"""Sites that join a run, leave it and come back; other versions; rolls that the server brings; words of operators."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from in_process_sites import SITES, SMALL, Here, Restartable, hosts, introduce, with_keys

from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.storage.json_log import JsonLines
from fedstrata.deploy import keys
from fedstrata.deploy.authority import Authority
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import build_reply, split
from fedstrata.remote.server import joining_sites, orders, site_registry
from fedstrata.remote.server.orders import OperatorOrder, RunControl, StoppedError, give_order
from fedstrata.remote.server.session import run_at_sites
from fedstrata.remote.server.site_registry import read_sites
from fedstrata.remote.site import site_server

SHORT = SMALL | {"train.rounds": 4}


def events(run, *kinds):
    return [event for event in run.events() if event["event"] in kinds]


def asked(requests):
    """Return the kinds of requests of an exchange."""
    return {split(split(r)[2] if split(r)[0] == b"in" else r)[0].decode() for r in requests.values()}


class Growing(Here):
    """A site comes during the first round."""

    def __init__(self, made, name="dresden"):
        super().__init__({site: host for site, host in made.items() if site != name})
        self.all = made

    def exchange(self, requests, deadline=None, enough=None):
        said = super().exchange(requests, deadline, enough)
        if "task" in asked(requests):
            self.hosts = self.all
        return said


def four(overrides=SHORT, **more):
    return hosts(overrides, sites=(*SITES, "dresden"), **more)


def train(transport, folder, overrides=SHORT, **how):
    return run_at_sites(transport, Experiment.of(None, **overrides), folder, 3, **how)


def test_a_site_that_comes_takes_part_from_the_next_round(tmp_path):
    run = train(Growing(four()), tmp_path / "run", absent={"dresden": "its disk is full"})
    assert [e["why"] for e in events(run, "site_refused")] == ["its disk is full"]
    (joined,) = events(run, "site_joined")
    assert (joined["site"], joined["client"], joined["round"]) == ("dresden", 3, 2)
    taught = {e["round"]: e["steps"][0]["clients"] for e in events(run, "round")}
    assert taught == {1: [0, 1, 2], 2: [0, 1, 2, 3], 3: [0, 1, 2, 3], 4: [0, 1, 2, 3]}
    assert list(read_sites(run.path)[1]) == [*SITES, "dresden"], "a run that is resumed goes on with it"
    assert [e["wall"]["sites"] for e in events(run, "sites")][-1] == [*SITES, "dresden"]
    assert run.summary["rounds"] == 4


def test_a_run_with_a_newcomer_is_resumed_with_it(tmp_path):
    made, seen = four(), []

    def stop(event):
        seen.append(event["event"])
        if event["event"] == "round" and event["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Growing(made), tmp_path / "run", watch=stop)
    assert "site_joined" in seen
    run = train(Here(made), tmp_path / "run", resumed=True)
    assert run.summary["rounds"] == 4
    assert events(run, "round")[-1]["steps"][0]["clients"] == [0, 1, 2, 3]
    assert len(events(run, "site_joined")) == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"method.name": "oort"}, "the selector keeps notes of every site"),
        ({"privacy.histogram_epsilon": 5.0, "method.name": "flips"}, "privacy was agreed on"),
    ],
)
def test_where_the_method_cannot_take_a_newcomer_one_event_says_so(tmp_path, more, why):
    asked_for = SHORT | more
    run = train(Growing(four(asked_for)), tmp_path / "run", asked_for)
    (waits,) = events(run, "site_waits")
    assert waits["site"] == "dresden"
    assert why in waits["why"]
    assert not events(run, "site_joined")
    assert list(read_sites(run.path)[1]) == list(SITES)


def test_a_newcomer_whose_data_do_not_fit_is_refused_once(tmp_path):
    made = four()
    whole = made["dresden"].load()
    strange = replace(whole, classes=tuple(f"x{c}" for c in whole.classes))
    made["dresden"] = Restartable("dresden", lambda: strange)
    run = train(Growing(made), tmp_path / "run")
    (refused,) = events(run, "site_refused")
    assert (refused["site"], "labels that the run does not know" in refused["why"]) == ("dresden", True)
    assert not events(run, "site_joined")


class Silent(Growing):
    """Two newcomers do not answer the first time that they are asked; it notes for how long they were waited for."""

    def __init__(self, made):
        super().__init__(made)
        self.hosts, self.waited = {site: host for site, host in made.items() if site in SITES}, []

    def exchange(self, requests, deadline=None, enough=None):
        new = requests.keys() - set(SITES)
        if new and asked(requests) == {"introduce"}:
            self.waited.append((sorted(new), deadline))
            if len(self.waited) == 1:
                return {}
        return super().exchange(requests, deadline, enough)


def test_newcomers_that_do_not_answer_hold_a_run_up_for_seconds_and_are_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(joining_sites, "SILENT", 0.0)
    transport = Silent(hosts(SHORT, sites=(*SITES, "dresden", "essen")))
    run = train(transport, tmp_path / "run", deadline=3600.0)
    assert transport.waited == [(["dresden", "essen"], joining_sites.ANSWER)] * 2
    assert [e["site"] for e in events(run, "warning")] == ["dresden", "essen"]
    assert [(e["site"], e["client"], e["round"]) for e in events(run, "site_joined")] == [
        ("dresden", 3, 3),
        ("essen", 4, 3),
    ]


def test_a_newcomer_that_says_what_cannot_be_keeps_no_other_out(tmp_path):
    made = hosts(SHORT, sites=(*SITES, "dresden", "essen"))
    transport = Growing(made)
    transport.hosts = {site: host for site, host in made.items() if site in SITES}
    transport.tamper = lambda name, kind, reply: (
        build_reply(b"{}") if (name, kind) == ("dresden", "introduce") else reply
    )
    run = train(transport, tmp_path / "run")
    assert [e["site"] for e in events(run, "site_refused")] == ["dresden"]
    assert [(e["site"], e["client"]) for e in events(run, "site_joined")] == [("essen", 3)]


# ---- absence


class Flickering(Here):
    """A site is killed in the middle of a run, and comes back later."""

    def __init__(self, made, gone):
        super().__init__(made)
        self.tasks, self.gone = 0, gone

    def names(self):
        return [name for name in sorted(self.hosts) if name != "bonn" or self.tasks not in self.gone]

    def exchange(self, requests, deadline=None, enough=None):
        self.tasks += "task" in asked(requests)
        there = self.names()
        return super().exchange({n: r for n, r in requests.items() if n in there}, deadline, enough)


def test_one_event_for_an_absence_and_one_for_the_return(tmp_path):
    run = train(Flickering(hosts(SMALL), gone=range(3, 9)), tmp_path / "run", SMALL | {"train.rounds": 12})
    said = [(e["event"], e["site"]) for e in events(run, "site_away", "site_back", "site_not_scored")]
    assert said == [("site_away", "bonn"), ("site_back", "bonn")]
    assert [e["clients"] for e in events(run, "dropped")] == [[1]]


def test_a_method_of_many_steps_says_once_that_a_site_is_gone(tmp_path):
    """In every hop of a chain whose turn it was, the same was said again."""
    chained = {"method.name": "sfl", "train.rounds": 3}
    run = train(Flickering(hosts(SMALL | chained), gone=range(2, 1000)), tmp_path / "run", SMALL | chained)
    assert [e["site"] for e in events(run, "site_away")] == ["bonn"]
    assert len(events(run, "dropped")) <= 1


# ---- versions


def test_a_site_with_another_version_is_said_to_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(site_registry, "__version__", "99.0")
    run = train(Here(hosts(SMALL)), tmp_path / "run", SMALL)
    assert [e["site"] for e in events(run, "site_version")] == list(SITES)
    assert "the server 99.0; both speak protocol 1, and fit" in events(run, "site_version")[0]["why"]


def test_a_site_with_another_protocol_is_refused_by_name(tmp_path, monkeypatch):
    made = four(SMALL)

    def older(name, kind, reply):
        old = name == "bonn" and kind == "introduce"
        return reply.replace(b'"protocol": 1', b'"protocol": 0') if old else reply

    run = train(Here(made, older), tmp_path / "run", SMALL)
    (refused,) = events(run, "site_refused")
    assert (refused["site"], "with protocol 0" in refused["why"]) == ("bonn", True)
    with pytest.raises(RequestError, match="3 sites are wanted, and 2 are left; site bonn: it has fedstrata"):
        train(Here(hosts(SMALL), older), tmp_path / "few", SMALL)
    monkeypatch.setattr(site_server, "PROTOCOL", 2)
    how, why = split(hosts(SMALL)["bonn"].answer(introduce(protocol=1, version="0.1")))
    assert (how, b"the server has fedstrata 0.1 with protocol 1" in why) == (b"version", True)


# ---- rolls


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "keys"
    keys.make(folder, SITES)
    return folder


def test_sites_take_in_the_roll_that_the_server_brings(federation, tmp_path, caplog):
    own = shutil.copytree(federation, tmp_path / "keys")
    old = {name: shutil.copytree(own / "sites" / name, tmp_path / "at" / name) for name in SITES}
    Authority.open(own).add(["dresden"])
    made = hosts(SMALL, lambda name: Credentials.load(old[name]), memory=tmp_path / "memory")
    server = Credentials.load(own / "server")
    run = train(Here(made), tmp_path / "run", SMALL, credentials=server)
    assert not events(run, "roll_refused")
    for name in SITES:
        assert made[name].state()["roll"] == 2
        assert Credentials.load(old[name], kept=tmp_path / "memory" / name).roll.serial == 2, "also after a restart"
    assert "roll 2 of" in caplog.text


def test_a_roll_that_is_older_or_forged_is_refused_with_an_event(federation, tmp_path, caplog):
    own = shutil.copytree(federation, tmp_path / "keys")
    server = Credentials.load(own / "server")
    Authority.open(own).add(["dresden"])
    run = train(with_keys(own, SMALL), tmp_path / "run", SMALL, credentials=server)
    assert {e["site"] for e in events(run, "roll_refused")} == set(SITES)
    assert "roll 1 is not newer than roll 2" in events(run, "roll_refused")[0]["why"]
    assert "a roll of the server is refused" in caplog.text


def test_a_site_says_once_that_it_refuses_a_roll_also_where_its_process_is_started_again(federation, tmp_path, caplog):
    own = shutil.copytree(federation, tmp_path / "keys")
    first = Credentials.load(own / "server").roll
    Authority.open(own).add(["dresden"])
    for number in (1, 2):
        site = hosts(SMALL, lambda name: Credentials.load(own / "sites" / name), memory=tmp_path / "memory")["bonn"]
        for run in ("one", "two"):
            reply = site.answer(introduce(run=f"{run}-{number}", roll=first.text))
            assert b"roll 1 is not newer than roll 2" in reply, "the server hears it of every run"
    Authority.open(own).add(["essen"])
    site.answer(introduce(run="three", roll=first.text))
    said = [record for record in caplog.records if getattr(record, "event", "") == "roll_refused"]
    assert [record.getMessage() for record in said] == [
        f"a roll of the server is refused: roll 1 is not newer than roll {held}, which holds here" for held in (2, 3)
    ]
    line = JsonLines(tmp_path / "log.jsonl", site="bonn").line(said[0])
    assert (line["event"], line["roll"], line["said"]) == ("roll_refused", 2, said[0].getMessage())


def test_the_server_hears_by_which_id_sites_know_a_run(tmp_path):
    named, made = [], hosts(SMALL)
    run = train(Here(made), tmp_path / "run", SMALL, named=named.append)
    assert named == [read_sites(run.path)[0]] == [made["bonn"].state()["run"]]


def test_a_roll_that_the_owner_puts_beside_the_keys_is_taken_in_without_a_restart(federation, tmp_path):
    own = shutil.copytree(federation, tmp_path / "keys")
    transport = with_keys(own, SMALL)
    assert transport.hosts["bonn"].state()["roll"] == 1
    Authority.open(own).revoke("aachen")
    transport.hosts["bonn"].answer(introduce())
    assert transport.hosts["bonn"].state()["roll"] == 2


# ---- operators


def test_an_operator_pauses_a_run_and_lets_it_go_on(federation, tmp_path, monkeypatch):
    own = shutil.copytree(federation, tmp_path / "keys")
    roll = Authority.open(own).add_operator("ann")
    path, ann = tmp_path / orders.FILE, orders.operator_key(own / "operators/ann")
    give_order(path, OperatorOrder.of("stop", "7", "ann", None))  # not signed
    give_order(path, OperatorOrder.of("stop", "7", "bob", ann[1]))  # no operator
    give_order(path, OperatorOrder.of("stop", "8", *ann))  # to another run
    give_order(path, OperatorOrder.of("pause", "7", *ann))
    monkeypatch.setattr(orders, "sleep", lambda _: give_order(path, OperatorOrder.of("continue", "7", *ann)))
    run = train(Here(hosts(SMALL)), tmp_path / "run", SMALL, control=RunControl(path, "7", lambda: roll))
    assert [e["why"] for e in events(run, "paused", "continued")] == [
        "operator ann paused it",
        "operator ann let it go on",
    ]
    assert run.summary["rounds"] == 3


def test_an_operator_stops_a_run_that_can_be_resumed(tmp_path):
    path, control = tmp_path / orders.FILE, RunControl(tmp_path / orders.FILE, "7", lambda: None)

    def stop(event):
        if event["event"] == "round":
            give_order(path, OperatorOrder.of("stop", "7", "ann", None))

    with pytest.raises(StoppedError, match="operator ann stopped the run"):
        train(Here(hosts(SMALL)), tmp_path / "run", SMALL, control=control, watch=stop)
    run = train(Here(hosts(SMALL)), tmp_path / "run", resumed=True)
    assert run.summary["rounds"] == 3

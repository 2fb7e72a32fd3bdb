"""Sites come and go: restarted, with other data, silent, away; and runs that are resumed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from in_process_sites import SITES, SMALL, Here, hosts, model

from fedstrata import train
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.index import Split
from fedstrata.core.wire import pack, unpack
from fedstrata.remote.protocol import build_reply, split
from fedstrata.remote.server import engine
from fedstrata.remote.server.orders import OperatorOrder, RunControl, StoppedError, give_order
from fedstrata.remote.server.session import run_at_sites
from fedstrata.remote.server.site_registry import read_sites
from fedstrata.remote.site.client_state import RUNS, StateOnDisk
from fedstrata.remote.site.site_server import SiteServer
from fedstrata.remote.site.source import only, source
from fedstrata.runs.folder import Run


def sites(overrides, memory=None):
    return hosts(SMALL | overrides, memory=memory)


def at(transport, tmp_path, overrides, **how):
    return run_at_sites(transport, Experiment.of(None, **(SMALL | overrides)), tmp_path / "sites", 3, **how)


def events(run, kind):
    return [e for e in run.events() if e["event"] == kind]


class Restarting(Here):
    """Restarts a site before the second round's task reaches it."""

    def __init__(self, hosts, name="bonn", load=None):
        super().__init__(hosts)
        self.name, self.load, self.tasks = name, load, 0

    def exchange(self, requests, deadline=None, enough=None):
        inner = [split(split(r)[2])[0] for n, r in requests.items() if n == self.name and split(r)[0] == b"in"]
        self.tasks += inner == [b"task"]
        if inner == [b"task"] and self.tasks == 2:
            self.hosts[self.name] = self.hosts[self.name].restarted(self.load)
        return super().exchange(requests, deadline, enough)


@pytest.mark.parametrize("method", ["scaffold", "fedbss"])
def test_a_site_that_was_killed_goes_on_from_its_own_disk(tmp_path, method):
    asked = {"method.name": method} | ({"method.sampler.warmup": 0} if method == "fedbss" else {})
    here = train(overrides=SMALL | asked, out=tmp_path / "here")
    run = at(Restarting(sites(asked, tmp_path / "memory")), tmp_path, asked)
    assert float((model(here) - model(run)).abs().max()) < 1e-9
    assert not events(run, "state_lost")
    assert not events(run, "dropped")


def test_a_site_that_lost_its_state_goes_on_without_and_the_run_says_so(tmp_path):
    asked = {"method.name": "scaffold"}
    run = at(Restarting(sites(asked)), tmp_path, asked)
    assert [(e["site"], e["client"], e["round"]) for e in events(run, "state_lost")] == [("bonn", 1, 2)]
    assert not events(run, "dropped")
    assert run.summary["rounds"] == 3


def halved(load):
    """Return the same site with half of its samples, and fewer labels."""

    def other():
        whole = load()
        rows = np.flatnonzero(np.isin(whole.train.y.numpy(), np.unique(whole.train.y.numpy())[:2]))
        return only(replace(whole, train_split=Split.of([rows])), 0)

    return other


def test_a_site_with_other_data_is_asked_again_what_it_has(tmp_path):
    asked = {"method.name": "flips", "train.clients_per_round": 3, "train.rounds": 4}
    made = sites(asked, tmp_path / "memory")
    load = halved(made["bonn"].load)
    transport = Restarting(made, load=load)
    seen = []
    answer = transport.tamper
    transport.tamper = lambda name, kind, reply: (seen.append((name, kind)), answer(name, kind, reply))[1]
    run = at(transport, tmp_path, asked)
    (changed,) = events(run, "site_changed")
    assert (changed["site"], changed["samples"]) == ("bonn", load().samples)
    assert changed["before"] > changed["samples"]
    assert [name for name, kind in seen if kind == "introduce"].count("bonn") == 3  # twice before the run, once after
    assert run.summary["rounds"] == 4
    assert not events(run, "dropped")


def test_data_that_the_run_cannot_know_are_refused_with_the_sites_name(tmp_path):
    made = sites({})

    def strange():
        whole = made["bonn"].load()
        return replace(whole, classes=tuple(f"x{c}" for c in whole.classes))

    run = at(Restarting(dict(made), load=strange), tmp_path, {})
    refusals = events(run, "site_refused")
    assert refusals
    assert all(e["site"] == "bonn" and "labels that the run does not know" in e["why"] for e in refusals)
    assert [e["clients"] for e in events(run, "dropped")] == [[1]]
    assert [e.get("refused") for e in events(run, "round")] == [None, None, {"bonn": 1}]


class Leaving(Here):
    """A site that is there only in some of the looks."""

    def __init__(self, hosts, looks):
        super().__init__(hosts)
        self.looks = iter(looks)

    def names(self):
        return sorted(set(self.hosts) - ({"bonn"} if next(self.looks, False) else set()))


def test_a_site_that_is_away_is_not_asked_and_comes_back(tmp_path):
    run = at(Leaving(sites({}), [False, False, False, True]), tmp_path, {"train.clients_per_round": 3})
    assert [e["site"] for e in events(run, "site_away")] == ["bonn"]
    assert [e["site"] for e in events(run, "site_back")] == ["bonn"]
    assert not events(run, "dropped")


def test_a_run_waits_for_sites_and_gives_up_in_the_end(tmp_path):
    class Empty(Here):
        looks = 0

        def names(self):
            self.looks += 1
            return super().names() if self.looks < 4 else []

    said = "0 of the 1 sites that are needed are there; missing: aachen, bonn, cologne; the run can be resumed"
    with pytest.raises(FedstrataError, match=said):
        at(Empty(sites({})), tmp_path, {}, patience=0.3)
    run = run_at_sites(Here(sites({})), {}, tmp_path / "sites", 3, resumed=True)
    assert run.summary["rounds"] == 3


def test_a_run_that_waits_says_for_whom_and_hears_its_operator(tmp_path):
    control, missed = RunControl(tmp_path / "orders.jsonl", "1", lambda: None), []

    def stop(sites):
        missed.append(sorted(sites))
        if sites:
            give_order(control.path, OperatorOrder.of("stop", "1", "ann", None))

    transport = Here(sites({}))
    transport.names = lambda: [] if (tmp_path / "sites/sites.json").exists() else sorted(transport.hosts)
    with pytest.raises(StoppedError, match="operator ann stopped the run; it can be resumed"):
        at(transport, tmp_path, {}, control=control, miss=stop)
    assert missed == [[], list(SITES), []], "those who are missing, and in the end nobody"
    (waiting,) = events(Run.open(tmp_path / "sites"), "waiting")
    assert waiting["sites"] == list(SITES)


def test_enough_reports_end_a_round(tmp_path):
    class Counting(Here):
        def __init__(self, hosts):
            super().__init__(hosts)
            self.enough = []

        def exchange(self, requests, deadline=None, enough=None):
            if enough is not None and len(requests) > 1:
                self.enough.append((len(requests), enough))
                requests = dict(list(requests.items())[:enough])  # the others are too slow
            return super().exchange(requests, deadline, enough)

    slow = Counting(sites({}))
    run = at(slow, tmp_path / "k", {"system.wait_for": 0.6})
    assert slow.enough == [(3, 2)] * 3
    assert [e["clients"] for e in events(run, "dropped")] == [[2]] * 3
    over = Counting(sites({}))
    at(over, tmp_path / "o", {"train.clients_per_round": 2, "system.over_select": 1.5})
    assert over.enough == [(3, 2)] * 3


NORMED = {
    "method.name": "stratify-batch",
    "model.name": "mlp",
    "model.norm": "batch",
    "train.rounds": 1,
    "method.schedule.length": 100,
    "train.batch_size": 20,
}


@pytest.mark.parametrize("what", ["silent", "strange", "not finite", "other type"])
def test_sites_that_meet_begin_anew_without_the_one_that_failed(tmp_path, what):
    met = []

    def tamper(name, kind, reply):
        met.extend([kind] * (name == "bonn" and kind in ("met", "task") and split(reply)[1] == b"meet"))
        if name != "bonn" or len(met) != 3 or split(reply)[1] != b"meet":
            return reply
        header, tensors = unpack(split(reply)[2])
        values = {"strange": tensors["values"][:-1], "not finite": tensors["values"] * torch.nan}
        values |= {"other type": tensors["values"].long()}
        return None if what == "silent" else build_reply(b"meet", pack(header, {"values": values[what]}))

    transport = Here(sites(NORMED), tamper)
    run = at(transport, tmp_path, NORMED)
    assert len(met) == 3  # it is not asked again in this round
    dropped = [e for e in events(run, "dropped") if 0 in e["clients"] or 2 in e["clients"]]
    assert not dropped  # nobody else lost anything
    (schedule,) = events(run, "schedule")
    assert schedule["entries"] == 100  # its labels went to others
    assert torch.isfinite(model(run)).all()


def test_sites_do_not_meet_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "MOST_ALL_REDUCES", 2)  # fewer than a batch takes
    run = at(Here(sites(NORMED)), tmp_path, NORMED)
    assert {e["why"] for e in events(run, "site_refused")} == {"it meets others more than 2 times"}


def test_norms_that_a_model_does_not_have_are_refused(tmp_path):
    def tamper(name, kind, reply):
        if kind not in ("met", "task") or split(reply)[1] != b"meet":
            return reply
        header, tensors = unpack(split(reply)[2])
        return build_reply(b"meet", pack(header | {"what": header["what"].replace(".var", ".other")}, tensors))

    run = at(Here(sites(NORMED), tamper), tmp_path, NORMED)
    assert {e["why"] for e in events(run, "site_refused")} == {"what it brings to meetings is of no norm"}


def test_two_runs_share_their_sites_without_mixing_them_up(tmp_path):
    asked, made = {"method.name": "scaffold"}, sites({}, tmp_path / "memory")
    alone = at(Here(sites(asked)), tmp_path / "alone", asked)

    class Interrupted(Here):
        rounds = 0

        def exchange(self, requests, deadline=None, enough=None):
            if len(requests) == 3 and b"evaluate" in next(iter(requests.values()))[:200]:
                self.rounds += 1
                if self.rounds == 1:
                    at(Here(self.hosts), tmp_path / "other", {"method.name": "fedavg"})
            return super().exchange(requests, deadline, enough)

    run = at(Interrupted(made), tmp_path, asked)
    assert torch.equal(model(alone), model(run))
    assert not events(run, "state_lost")


def test_a_resumed_run_goes_on_at_its_own_sites(tmp_path):
    whole = at(Here(sites({})), tmp_path / "whole", {})

    def stop(event):
        if event["event"] == "round":
            raise KeyboardInterrupt

    made = sites({})
    with pytest.raises(KeyboardInterrupt):
        at(Here(made), tmp_path, {}, watch=stop)
    made["amsterdam"] = SiteServer("amsterdam", made["bonn"].load)  # another one came; it would be the first by name

    class Closed(Here):
        def reachable(self):  # and cannot be had for this run
            return []

    run = at(Closed(made), tmp_path, {}, resumed=True)
    assert torch.equal(model(whole), model(run))
    assert list(read_sites(tmp_path / "sites")[1]) == list(SITES)


def test_a_resumed_run_asks_a_site_with_other_data_all_that_the_method_needs(tmp_path):
    asked = {"method.name": "flips", "train.clients_per_round": 3}
    made, introductions = sites(asked), []

    class Noting(Here):
        def exchange(self, requests, deadline=None, enough=None):
            introductions.extend(r for r in requests.values() if split(r)[0] == b"introduce")
            return super().exchange(requests, deadline, enough)

    def stop(event):
        if event["event"] == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at(Here(made), tmp_path, asked, watch=stop)
    made["bonn"] = made["bonn"].restarted(halved(made["bonn"].load))
    run = at(Noting(made), tmp_path, asked, resumed=True)
    (request,) = introductions
    assert "counts" in json.loads(split(request)[1])["needs"]
    assert [e["site"] for e in events(run, "site_changed")] == ["bonn"]
    assert run.summary["rounds"] == 3


def test_a_resumed_run_goes_on_with_those_who_are_there(tmp_path):
    def stop(event):
        if event["event"] == "round":
            raise KeyboardInterrupt

    made = sites({})
    with pytest.raises(KeyboardInterrupt):
        at(Here(made), tmp_path, {}, watch=stop)
    del made["bonn"]

    class Without(Here):
        def exchange(self, requests, deadline=None, enough=None):
            return super().exchange({n: r for n, r in requests.items() if n in self.hosts}, deadline, enough)

    run = at(Without(made), tmp_path, {}, resumed=True)
    assert run.summary["rounds"] == 3
    assert any(e["site"] == "bonn" for e in events(run, "site_refused"))


def test_a_new_run_needs_everybody(tmp_path):
    class Silent(Here):
        def exchange(self, requests, deadline=None, enough=None):
            return super().exchange({n: r for n, r in requests.items() if n != "bonn"}, deadline, enough)

    with pytest.raises(RequestError, match="site bonn: it does not answer"):
        at(Silent(sites({})), tmp_path, {})


def test_memory_keeps_what_is_asked_for_and_forgets_with_the_data(tmp_path):
    one = {"c": torch.arange(3.0)}
    memory = StateOnDisk(tmp_path, "run", "data")
    memory.keep({None: {}, (0, 0): one, (1, 0): {}})
    memory.keep({None: {}, (0, 0): one, (2, 0): {"c": torch.ones(1)}})
    again = StateOnDisk(tmp_path, "run", "data").by_tag
    assert set(again) == {None, (0, 0), (2, 0)}
    assert torch.equal(again[0, 0]["c"], one["c"])
    assert set(StateOnDisk(tmp_path, "another", "data").by_tag) == {None}
    (cut,) = tmp_path.rglob("2-0.safetensors")
    cut.write_bytes(cut.read_bytes()[:-3])
    assert set(StateOnDisk(tmp_path, "run", "data").by_tag) == {None, (0, 0)}
    assert set(StateOnDisk(tmp_path, "run", "other data").by_tag) == {None}
    for i in range(2 * RUNS):
        StateOnDisk(tmp_path, f"later {i}", "data")
    assert len(list(tmp_path.iterdir())) == RUNS


def test_source_names_parts():
    with pytest.raises(RequestError, match="no part 3"):
        only(source({"name": "digits"}, 0, (0, 3)), 3)

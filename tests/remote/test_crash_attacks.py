"""What a server gets that crashes, goes on, and asks again for what it lost: nothing that it could subtract."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from in_process_sites import SITES, SMALL, Here, model, with_keys

from fedstrata import Accountant
from fedstrata.config.experiment import Experiment
from fedstrata.config.travel import to_sites
from fedstrata.core.wire import pack, pack_task, unpack_task
from fedstrata.deploy.keys import make
from fedstrata.privacy.masked_sum import StepSum
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import build_request, read_reply, split, to_json, within
from fedstrata.remote.server.session import run_at_sites

FOUR = (*SITES, "dresden")
MASKED = {
    "data.clients": 4,
    "method.combiner": "uniform",
    "privacy.aggregate": "masked",
    "privacy.encoding.bits": 64,
    "privacy.encoding.fraction": 40,
}
NOISED = {"data.clients": 4, "method.combiner": "uniform", "privacy.dp.noise": 1.5, "privacy.dp.delta": 1e-5}
NORMED = {"model.name": "mlp", "model.norm": "batch", "method.name": "fedtan"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "all"
    make(folder, FOUR)
    return folder


class Killed(BaseException):
    """The server's process is no more."""


class Network(Here):
    """Counts what sites give, by kind, site, round and step; kills the server where `dies` says so; loses who is away.

    What a site gave left it, whether or not anybody was there to hear it.
    """

    def __init__(self, keys, overrides, memory):
        super().__init__(with_keys(keys, SMALL | overrides, sites=FOUR, memory=memory).hosts)
        self.given, self.tasks, self.away = Counter(), {}, set()
        self.dies = lambda kind, step: False

    def names(self):
        return sorted(self.hosts.keys() - self.away)

    def exchange(self, requests, deadline=None, enough=None):
        told, died = {}, False
        for name in sorted(requests.keys() - self.away):
            kind, fields = _inner(requests[name])
            if kind == "task":
                self.tasks[name] = unpack_task(fields[0])
            told[name] = self.hosts[name].answer(requests[name])
            at = (self.tasks[name].round + 1, self.tasks[name].step) if name in self.tasks else (0, 0)
            what = f"sum {fields[0].decode()}" if kind == "sum" else kind
            if split(told[name])[0] == b"done":
                self.given[what, name, at] += 1
            died = died or self.dies(what, at)
        if died:
            raise Killed
        return told

    def twice(self, what):
        """Name who gave something for the same step more than once, and when."""
        return sorted((name, at) for (kind, name, at), times in self.given.items() if kind == what and times > 1)

    def restart(self):
        for name, host in self.hosts.items():
            self.hosts[name] = host.restarted()


def _inner(request):
    outer = split(request)
    kind, *fields = split(outer[2]) if outer[0] == b"in" else outer
    return kind.decode(), fields


@pytest.fixture
def formed(monkeypatch):
    """Collect the sums that the server learned, by job."""
    sums, form = {}, StepSum.sum_masked

    def watched(self, weights, layout, step, *more):
        known = form(self, weights, layout, step, *more)
        sums.setdefault(step.job, []).append((set(weights), known.mean("update")))
        return known

    monkeypatch.setattr(StepSum, "sum_masked", watched)
    return sums


def train(keys, network, overrides, out, **how):
    experiment = Experiment.of(None, **(SMALL | overrides))
    return run_at_sites(network, experiment, out, 3, credentials=Credentials.load(keys / "server"), **how)


def crash(keys, network, overrides, out, **how):
    with pytest.raises(Killed):
        train(keys, network, overrides, out, **how)
    network.dies = lambda kind, step: False


def at_round(number):
    """Let the server die when a round is done, and before it is saved."""

    def watch(event):
        if event["event"] == "round" and event["round"] == number:
            raise Killed

    return watch


def events(run, kind):
    return [event for event in run.events() if event["event"] == kind]


def without_update(run):
    return [event["round"] for event in events(run, "no_update")]


# ---- masked updates --------------------------------------------------------------------------------------------------


def test_a_round_that_is_run_again_without_a_site_does_not_show_its_update(tmp_path, keys, formed):
    """The server dies when it knows the sum over four sites, and goes on with three."""
    asked = MASKED | {"train.rounds": 2}
    whole = train(keys, Network(keys, asked, tmp_path / "undisturbed"), asked, tmp_path / "whole")
    formed.clear()
    network = Network(keys, asked, tmp_path / "memory")
    crash(keys, network, asked, tmp_path / "run", watch=at_round(2))
    network.away = {"dresden"}
    run = train(keys, network, asked, tmp_path / "run", resumed=True)
    for sums in formed.values():
        assert [len(members) for members, _ in sums] == [4], "a second sum, whose difference to the first is an update"
    assert [(e["round"], e["step"]) for e in events(run, "sum_reused")] == [(2, 0)]
    assert not network.twice("sum masked")
    assert not without_update(run)
    assert torch.equal(model(run), model(whole))
    assert [e["steps"] for e in events(run, "round")] == [e["steps"] for e in events(whole, "round")]
    assert not list((tmp_path / "run" / "checkpoint").glob("sum-*")), "the checkpoint holds what came of them"


@pytest.mark.parametrize("restarted", [False, True], ids=["sites that stayed", "sites that were restarted"])
@pytest.mark.parametrize("dies", ["sum masked", "sum reveal"])
def test_a_step_whose_sum_was_not_kept_makes_no_update(tmp_path, keys, formed, dies, restarted):
    network = Network(keys, MASKED, tmp_path / "memory")
    network.dies = lambda kind, step: (kind, step) == (dies, (2, 0))
    crash(keys, network, MASKED, tmp_path / "run")
    network.away = {"dresden"}
    if restarted:
        network.restart()
    run = train(keys, network, MASKED, tmp_path / "run", resumed=True)
    assert not network.twice("sum masked")
    assert without_update(run) == [2]
    refused = [e for e in events(run, "site_refused") if e.get("round") == 2]
    assert {e["site"] for e in refused} == set(SITES)
    assert all("gave its update for round 2, step 0" in e["why"] for e in refused)
    assert all(len(sums) == 1 for sums in formed.values())
    assert run.summary["rounds"] == 3
    assert any("no update arrived" in remark for remark in run.summary["remarks"])


def test_a_crash_while_sites_train_costs_nothing(tmp_path, keys):
    whole = train(keys, Network(keys, MASKED, tmp_path / "undisturbed"), MASKED, tmp_path / "whole")
    network = Network(keys, MASKED, tmp_path / "memory")
    network.dies = lambda kind, step: (kind, step) == ("task", (2, 0))
    crash(keys, network, MASKED, tmp_path / "run")
    run = train(keys, network, MASKED, tmp_path / "run", resumed=True)
    assert not without_update(run)
    assert torch.equal(model(run), model(whole))


def test_a_server_that_was_restored_from_an_old_copy_goes_on_past_what_sites_gave(tmp_path, keys):
    asked, out = MASKED | {"train.rounds": 5}, tmp_path / "run"
    network = Network(keys, asked, tmp_path / "memory")

    def copying(event):
        if event["event"] == "round" and event["round"] == 2:
            shutil.copytree(out, tmp_path / "copy")  # of round 1
        at_round(4)(event)

    crash(keys, network, asked, out, watch=copying)
    shutil.rmtree(out)
    (tmp_path / "copy").rename(out)
    for sums in (out / "checkpoint").glob("sum-*"):
        sums.unlink()
    run = train(keys, network, asked, out, resumed=True)
    assert not network.twice("sum masked")
    assert without_update(run) == [2, 3, 4]
    assert [sorted(c for s in e["steps"] for c in s["clients"]) for e in events(run, "round")][4] == [0, 1, 2, 3]


def test_batch_statistics_are_not_brought_to_a_second_meeting(tmp_path, keys):
    """What clients bring to batch norms under masks could be subtracted as well."""
    asked = MASKED | NORMED | {"train.rounds": 2}
    network = Network(keys, asked, tmp_path / "memory")
    network.dies = lambda kind, step: (kind, step) == ("met", (2, 0))
    crash(keys, network, asked, tmp_path / "run")
    met = network.given["task", "bonn", (2, 0)]
    network.away = {"dresden"}
    run = train(keys, network, asked, tmp_path / "run", resumed=True)
    network.hosts["dresden"]._session.end()  # it still waits for the others
    assert network.given["task", "bonn", (2, 0)] == met == 1
    assert without_update(run) == [2]


def test_a_task_that_waits_for_others_ends_with_its_run(tmp_path, keys):
    """Or else it would report under the next run's privacy: in the open what was asked for under masks."""
    asked = MASKED | NORMED | {"train.rounds": 1}
    network = Network(keys, asked, tmp_path / "memory")
    network.dies = lambda kind, step: kind == "task"
    crash(keys, network, asked, tmp_path / "run")
    bonn, before = network.hosts["bonn"], json.loads((tmp_path / "run" / "sites.json").read_text())["run"]
    waiting = bonn._session.running
    place = {"run": "b", "client": 1, "sites": list(FOUR), "classes": list(range(10)), "speed": 1.0}
    open_run = to_sites(Experiment.of(None, **(SMALL | {"data.clients": 4, "method.combiner": "uniform"})))
    begin = build_request("begin", to_json(place), to_json(open_run))
    assert read_reply(bonn.answer(begin), 1)
    assert not waiting._thread.is_alive(), "its thread holds the trainer of a run that is over"
    met = build_request("met", pack({"count": 1.0}, {"average": torch.zeros(8, dtype=torch.float64)}))
    for run, why in {"b": "is not waiting for anybody", before: "takes part in another run"}.items():
        with pytest.raises(Exception, match=why):
            read_reply(bonn.answer(within(run, met)), 2)


def test_a_server_that_repeats_a_step_in_other_company_is_refused(tmp_path, keys):
    """No crash at all: it says that it is the same step, or an earlier one, or one that is no number."""
    network = Network(keys, MASKED, tmp_path / "memory")
    train(keys, network, MASKED, tmp_path / "run")
    run = json.loads((tmp_path / "run" / "sites.json").read_text())["run"]
    for wrong, why in {2: "once for a step", 0: "once for a step", float("nan"): "whole", True: "whole"}.items():
        for name, task in network.tasks.items():
            repeated = within(run, build_request("task", pack_task(replace(task, round=wrong)), b""))
            with pytest.raises(Exception, match=why):
                read_reply(network.hosts[name].answer(repeated), 2)
    summing = within(run, build_request("sum", b"advertise", b"{}", b""))
    with pytest.raises(Exception, match="nothing to sum"):
        read_reply(network.hosts["bonn"].answer(summing), 1)


def test_nothing_leaves_a_site_whose_disk_refuses(tmp_path, keys, monkeypatch):
    network = Network(keys, MASKED, tmp_path / "memory")

    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr("fedstrata.remote.site.ledger.write_atomically", full)
    run = train(keys, network, MASKED, tmp_path / "run")
    assert not [key for key in network.given if key[0] == "sum masked"]
    assert without_update(run) == [1, 2, 3]


# ---- noise -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [{}, MASKED], ids=["open", "masked"])
def test_five_crashes_spend_no_more_than_the_summary_says(tmp_path, keys, masked):
    """Reports with noise of the sites' own: whatever left a site counts, also what nobody received."""
    asked = NOISED | masked | {"privacy.dp.where": "local"}
    network = Network(keys, asked, tmp_path / "memory")
    gives = "sum masked" if masked else "task"
    for times, at in enumerate([1, 2, 2, 3, 3]):
        again = network.given[gives, "bonn", (at, 0)]  # then it refuses the task
        network.dies = lambda kind, step, when=("task" if again else gives, (at, 0)): (kind, step) == when
        crash(keys, network, asked, tmp_path / "run", resumed=times > 0)
        network.restart()
    run = train(keys, network, asked, tmp_path / "run", resumed=True)
    left = Counter(name for kind, name, _ in network.given.elements() if kind == gives)
    spent = Accountant(1.5, 1e-5, local=True).epsilon(max(left.values()))
    assert run.summary["epsilon"] == pytest.approx(spent)
    assert round(spent, 1) == 12.0, "of three reports; eight would be 22.5"
    assert without_update(run) == [1, 2, 3]


def test_a_sum_with_the_server_s_noise_is_published_once(tmp_path, keys, monkeypatch):
    """A round that is run again must not draw the noise again: two draws tell more than one."""
    drawn, asked = [], NOISED | {"privacy.dp.where": "server"}
    network, noised = Network(keys, asked, tmp_path / "memory"), StepSum.sum_open
    monkeypatch.setattr(StepSum, "sum_open", lambda *args: drawn.append(noised(*args)) or drawn[-1])
    models = []

    def watch(event):
        if event["event"] == "round":
            models.append((event["round"], event["loss_test"]))
            at_round(2)(event)

    crash(keys, network, asked, tmp_path / "run", watch=watch)
    run = train(keys, network, asked, tmp_path / "run", resumed=True, watch=lambda event: None)
    assert len(drawn) == 3
    again = [(e["round"], e["loss_test"]) for e in events(run, "round")]
    assert again[:2] == models, "the same model as before the crash"


def test_a_site_counts_its_budget_itself(tmp_path, keys):
    """A server that goes on when the budget is spent is refused, also by a site that was restarted meanwhile."""
    accountant = Accountant(1.5, 1e-5, local=True)
    budget = {"privacy.dp.where": "local", "privacy.dp.budget": accountant.epsilon(2), "train.rounds": 9}
    network = Network(keys, NOISED | budget, tmp_path / "memory")
    run = train(keys, network, NOISED | budget, tmp_path / "run")
    assert run.summary["rounds"] == 2
    assert run.summary["epsilon"] == pytest.approx(accountant.epsilon(2))
    network.restart()
    asked = json.loads((tmp_path / "run" / "sites.json").read_text())
    begin = {"run": asked["run"], "client": 1, "sites": list(FOUR), "classes": list(range(10)), "speed": 1.0}
    site, task = network.hosts["bonn"], network.tasks["bonn"]
    told = json.dumps(to_sites(Experiment.of(None, **(SMALL | NOISED | budget)))).encode()
    read_reply(site.answer(build_request("begin", json.dumps(begin).encode(), told)), 1)
    more = replace(task, round=2, accepted=None, durable=None)
    with pytest.raises(Exception, match=r"privacy\.dp\.budget"):
        read_reply(site.answer(within(asked["run"], build_request("task", pack_task(more), b""))), 2)


def test_runs_have_budgets_of_their_own_and_the_ledger_counts_them_all(tmp_path, keys):
    asked = NOISED | {"privacy.dp.where": "local", "train.rounds": 2}
    network = Network(keys, asked, tmp_path / "memory")
    for name in ("one", "two"):
        train(keys, network, asked, tmp_path / name)
    network.restart()
    assert np.allclose([host._ledger.spent() for host in network.hosts.values()], 4 * (2 / 1.5) ** 2)

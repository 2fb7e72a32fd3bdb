"""Requests as Flower's messages, the server's app and the thin app at a site, with what can go wrong on each."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flower_run import pretend_to_be_started, stamp
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.remote.flower import client_app, messages, records, server_app
from fedstrata.remote.flower.app_config import RunConfig
from fedstrata.remote.flower.failure import write_failure
from fedstrata.remote.flower.messages import Messages
from fedstrata.remote.flower.server_app import read_registered, wait_for
from fedstrata.remote.server.coming_sites import ComingSites
from fedstrata.remote.server.orders import OperatorOrder, RunControl, StoppedError, give_order
from fedstrata.remote.site.private_socket import Door
from fedstrata.remote.transport import Failure

PATIENCE = 300.0  # seconds for what will come, on however busy a machine


@pytest.fixture(autouse=True)
def _a_task(monkeypatch):
    pretend_to_be_started(monkeypatch)
    monkeypatch.setattr(server_app, "OFTEN", 0.01)


class Nodes:
    """A grid: node -> a function from a message to its reply, at once, or to (seconds, reply), or to None."""

    def __init__(self, nodes, clock=time.monotonic):
        self.nodes, self.clock, self.waiting, self.asked, self.sent = nodes, clock, {}, [], 0

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, pushed):
        ids = []
        for message in pushed:
            self.sent += 1
            name = f"m{self.sent}"
            stamp(message, message_id=name)
            node = message.metadata.dst_node_id
            self.asked.append((node, message.metadata.message_type))
            answer = self.nodes[node](message) if node in self.nodes else None
            if answer is not None:
                seconds, reply = answer if isinstance(answer, tuple) else (0.0, answer)
                self.waiting[name] = (self.clock() + seconds, reply)
            ids.append(name)
        return ids

    def pull_messages(self, ids):
        ready = [name for name in ids if name in self.waiting and self.waiting[name][0] <= self.clock()]
        for name in ready:
            _, reply = self.waiting.pop(name)
            if isinstance(reply, Exception):
                raise reply
            yield reply


def node(name, reply=lambda data: data):
    """A node of a site; `reply` gives bytes, anything that a grid may give for a message, or raises."""

    def answered(message):
        if message.metadata.message_type == "query.site":
            return Message(RecordDict({"site": ConfigRecord({"name": name})}), reply_to=message)
        told = reply(records.unwrap(message.content))
        if isinstance(told, tuple):
            return told[0], Message(records.wrap(told[1]), reply_to=message)
        if isinstance(told, RecordDict | Error):
            return Message(told, reply_to=message)
        return Message(records.wrap(told), reply_to=message) if isinstance(told, bytes) else told

    return answered


def known(grid, sites, **how):
    transport = Messages(grid, **how)
    wait_for(transport, sites, PATIENCE)
    return transport


def test_sites_are_named_by_one_question_each_and_only_while_they_are_there():
    grid = Nodes({7: node("bonn"), 3: node("aachen")})
    transport = known(grid, 2)
    assert transport.names() == ["aachen", "bonn"]
    grid.nodes[5] = node("cologne")
    del grid.nodes[3]
    wait_for(transport, 2, PATIENCE)
    assert transport.names() == ["bonn", "cologne"]
    assert sorted(grid.asked) == [(3, "query.site"), (5, "query.site"), (7, "query.site")]
    assert transport.exchange({"aachen": b"?", "bonn": b"!"}) == {"bonn": b"!"}
    grid.nodes[3] = node("aachen")
    wait_for(transport, 3, PATIENCE)
    assert grid.asked.count((3, "query.site")) == 2


@pytest.mark.parametrize("name", ["", "a" * 64, "../x", "a b", 3, b"aachen", ["aachen"]])
def test_a_name_that_is_none_is_not_taken(name):
    said = []
    transport = Messages(Nodes({1: node(name), 2: node("bonn")}), say=said.append)
    transport.names()
    assert transport.names() == ["bonn"]
    assert any("gives a name that is none" in text for text in said)


def test_with_keys_a_node_has_no_name_but_that_of_its_key(tmp_path):
    (tmp_path / "nodes.json").write_text('{"bonn": {"node": "1", "key": "k"}, "aachen": {"node": "2", "key": "l"}}')
    said, grid = [], Nodes({1: node("bonn"), 2: node("cologne"), 3: node("dortmund")})
    transport = Messages(grid, say=said.append, registered=lambda: read_registered(tmp_path / "nodes.json"))
    transport.names()
    assert transport.names() == ["bonn"]
    assert sorted(text for text in said if "does not have the key" in text) == [
        "node 2 says that it is site cologne, and does not have the key of that site",
        "node 3 says that it is site dortmund, and does not have the key of that site",
    ]
    (tmp_path / "nodes.json").write_text("[]")
    with pytest.raises(FedstrataError, match="which sites may connect"):
        read_registered(tmp_path / "nodes.json")


def test_a_node_whose_key_was_renewed_is_nobody_though_flower_still_has_it(monkeypatch):
    monkeypatch.setattr(messages, "AGAIN", 0.0)
    keys, grid = {1: "bonn"}, Nodes({1: node("bonn")})
    transport = Messages(grid, registered=lambda: dict(keys))
    transport.names()
    assert (transport.names(), transport.registrations()) == (["bonn"], {"bonn": 1})
    keys.clear()
    keys[2] = "bonn"
    grid.nodes[2] = node("bonn", lambda _: b"new")
    transport.names()
    assert (transport.names(), transport.registrations()) == (["bonn"], {"bonn": 2})
    assert transport.exchange({"bonn": b"?"}, PATIENCE) == {"bonn": b"new"}
    assert Messages(grid).registrations() is None


def test_replies_that_are_expected_late_are_looked_for_rarely_until_there_is_a_hurry(monkeypatch):
    looks, pauses = [], []
    grid = Nodes({1: node("bonn", lambda _: (float("inf"), b"never"))})
    transport = known(grid, 1)
    monkeypatch.setattr(grid, "pull_messages", lambda ids: looks.append(ids) or ())

    class Hurry(threading.Event):
        def wait(self, timeout):  # no time passes here
            pauses.append(timeout)
            if len(pauses) == 5:
                self.set()

    def closing(timeout):
        pauses.append(timeout)
        transport.close()

    monkeypatch.setattr(transport._closed, "wait", closing)
    assert transport.exchange({"bonn": b"?"}, hurry=Hurry()) == {}
    assert pauses[:5] == [1.0] * 5
    assert pauses[5] <= 1.0
    assert len(looks) == 6


def test_the_first_of_two_nodes_with_one_name_keeps_it_until_it_leaves(monkeypatch):
    monkeypatch.setattr(messages, "AGAIN", 0.0)
    grid = Nodes({1: node("bonn", lambda _: b"first")})
    transport = known(grid, 1)
    grid.nodes[2] = node("bonn", lambda _: b"second")
    for _ in range(4):
        assert transport.names() == ["bonn"]
    assert transport.exchange({"bonn": b""}) == {"bonn": b"first"}
    del grid.nodes[1]
    wait_for(transport, 1, PATIENCE)
    assert transport.exchange({"bonn": b""}) == {"bonn": b"second"}


def test_a_node_that_cannot_say_its_name_is_asked_again(monkeypatch):
    monkeypatch.setattr(messages, "AGAIN", 0.0)
    calls = []

    def late(message):
        calls.append(message)
        return Message(Error(2, "no socket"), reply_to=message) if len(calls) < 3 else node("bonn")(message)

    assert known(Nodes({1: late}), 1).names() == ["bonn"]
    assert len(calls) == 3


def test_long_requests_travel_in_parts(monkeypatch):
    monkeypatch.setattr(records, "PART", 1000)
    data = random.Random(0).randbytes(10_500)
    assert len(records.wrap(data)) == 11
    transport = known(Nodes({1: node("bonn", lambda data: data[::-1])}), 1)
    assert transport.exchange({"bonn": data}) == {"bonn": data[::-1]}
    assert transport.exchange({"bonn": b""}) == {"bonn": b""}


def test_a_silent_site_is_left_out_when_the_deadline_passes_and_others_are_not_kept_waiting():
    transport = known(Nodes({1: node("aachen"), 2: node("bonn", lambda _: None)}), 2)
    requests, start = {"aachen": b"1", "bonn": b"2"}, time.monotonic()
    assert transport.exchange(requests, deadline=0.3) == {"aachen": b"1"}
    assert time.monotonic() - start >= 0.3
    start = time.monotonic()
    assert transport.exchange(requests, deadline=PATIENCE, enough=1) == {"aachen": b"1"}
    assert time.monotonic() - start < PATIENCE


def test_a_failure_is_none_of_those_that_are_enough():
    nodes = {1: node("aachen", lambda _: Error(2, "no")), 2: node("bonn", lambda data: (0.2, data))}
    assert known(Nodes(nodes), 2).exchange({"aachen": b"1", "bonn": b"2"}, PATIENCE, enough=1) == {
        "aachen": Failure("no"),
        "bonn": b"2",
    }


@pytest.mark.parametrize(("seconds", "after"), [(0.4, 0.1), (3.0, 0.3), (60.0, 1.0)])
def test_replies_are_fetched_soon_after_they_come(monkeypatch, seconds, after):
    now = [0.0]

    class Clock(threading.Event):
        def wait(self, timeout=None):
            now[0] += timeout
            return False

    monkeypatch.setattr(messages, "monotonic", lambda: now[0])
    monkeypatch.setattr(messages, "threading", SimpleNamespace(RLock=threading.RLock, Event=Clock))
    grid = Nodes({1: node("bonn", lambda data: (seconds, data))}, clock=lambda: now[0])
    known(grid, 1).exchange({"bonn": b"x"})
    assert seconds <= now[0] <= seconds + after + 1e-9


def test_closing_lets_a_waiting_thread_go():
    transport = known(Nodes({1: node("bonn", lambda _: None)}), 1)
    threading.Timer(0.2, transport.close).start()
    assert transport.exchange({"bonn": b"x"}) == {}


BROKEN = {
    "an error": (Error(2, "x" * 9000), "x" * 4000),
    "no reason": (Error(2), "no reason given"),
    "no records": (RecordDict(), "a message is empty"),
    "other records": (RecordDict({"x": ConfigRecord({"data": b""})}), "a message has other records than one of ours"),
    "a gap": (RecordDict({"part-1": ConfigRecord({"data": b""})}), "a message has other records than one of ours"),
    "text": (RecordDict({"part-0": ConfigRecord({"data": "text"})}), "a message's data are not bytes"),
    "more": (
        RecordDict({"part-0": ConfigRecord({"data": b"", "x": 1})}),
        "a message has other records than one of ours",
    ),
    "too long": (b"x" * 2001, "a message is longer than 2000 bytes"),
    "unreadable": ((0.0, ValueError("secret")), "its reply cannot be read: ValueError"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_replies_are_not_trusted_and_harm_nobody_else(case):
    told, reason = BROKEN[case]
    bad = node("aachen", lambda _: told)
    if case == "unreadable":
        bad = lambda m: node("aachen")(m) if m.metadata.message_type != "train" else told  # noqa: E731
    transport = known(Nodes({1: bad, 2: node("bonn")}), 2, longest=2000)
    assert transport.exchange({"aachen": b"1", "bonn": b"2"}, PATIENCE) == {"aachen": Failure(reason), "bonn": b"2"}


def test_a_reply_of_another_node_is_refused():
    def foreign(message):
        reply = node("aachen")(message)
        if message.metadata.message_type == "train":
            stamp(reply, src_node_id=2)
        return reply

    transport = known(Nodes({1: foreign, 2: node("bonn")}), 2)
    assert transport.exchange({"aachen": b"1"}, PATIENCE) == {"aachen": Failure("its reply comes from another node")}


def test_what_flower_does_not_take_is_a_failure():
    grid = Nodes({1: node("bonn")})
    transport = known(grid, 1)
    for nothing in ([], [None], [""]):
        grid.push_messages = lambda pushed, nothing=nothing: nothing
        assert transport.exchange({"bonn": b"1"}, PATIENCE) == {"bonn": Failure("Flower did not take the message")}


def test_the_run_config_is_checked(tmp_path):
    good = {"experiment": str(tmp_path / "e.toml"), "out": str(tmp_path / "run"), "sites": 3, "deadline": 10}
    assert RunConfig.of(good).deadline == 10.0
    for key, value in {
        "experiment": "e.toml",
        "sites": 0,
        "resume": "yes",
        "deadline": -1,
        "stream": 4,
        "wait": True,
    }.items():
        with pytest.raises(RequestError, match=f"run config {key} = .* is not valid; allowed: "):
            RunConfig.of(good | {key: value})
    with pytest.raises(RequestError, match="run config out = None"):
        RunConfig.of({k: v for k, v in good.items() if k != "out"})


def test_waiting_for_sites_ends(tmp_path):
    with pytest.raises(RequestError, match=r"2 sites are wanted, and after 0\.5 seconds these are there: bonn"):
        wait_for(Messages(Nodes({1: node("bonn")})), 2, 0.5)


def test_whom_a_run_waits_for_is_named_in_news_and_in_the_end():
    """Who is on the roll and not there; of a run that goes on, its own sites alone."""
    told, news, bonn = [], [], Messages(Nodes({1: node("bonn")}))
    coming = ComingSites(None, lambda: ["bonn", "cologne", "oslo"], told.append)
    with pytest.raises(RequestError, match="these are there: bonn; missing: cologne, oslo"):
        wait_for(bonn, 2, 0.5, news.append, coming=coming)
    assert news[-1] == "1 of 2 sites are there: bonn; missing: cologne, oslo"
    assert told[-1] == ["cologne", "oslo"]
    with pytest.raises(RequestError, match=r"these are there: none; missing: cologne$"):
        wait_for(bonn, 1, 0.5, news.append, coming=ComingSites(["cologne", "paris"], lambda: ["bonn", "cologne"]))
    assert wait_for(bonn, 1, 0.5, coming=coming) == ["bonn"]
    assert told[-1] == (), "nobody is waited for any more"


def test_nobody_is_said_to_be_missing_who_is_about_to_be_met(monkeypatch):
    """Also ready sites are met one after the other; who is missing after a while, is."""
    clock = [0.0]
    monkeypatch.setattr(server_app, "monotonic", lambda: clock[0])
    monkeypatch.setattr(server_app, "sleep", lambda _: clock.__setitem__(0, clock[0] + 0.5))

    class Meets:
        """Meets `all` of three sites, a site in half a second."""

        def __init__(self, all):
            self.all = all

        def names(self):
            return ["bonn", "oslo", "rome"][: min(self.all, int(clock[0] / 0.5))]

    news, told = [], []
    coming = ComingSites(None, lambda: ["bonn", "oslo", "rome"], told.append)
    assert len(wait_for(Meets(3), 3, 60, lambda line: news.append((clock[0], line)), coming=coming)) == 3
    assert not news
    assert told[0] == ["bonn", "oslo", "rome"], "deploy status knows at once whom it waits for"
    clock[0] = 0.0
    with pytest.raises(RequestError, match="missing: rome"):
        wait_for(Meets(2), 3, 60, lambda line: news.append((clock[0], line)), coming=coming)
    assert news == [(2.0, "2 of 3 sites are there: bonn, oslo; missing: rome")]


def test_a_run_says_at_once_that_the_roll_has_too_few_and_again_only_where_that_changes():
    news, keys, bonn = [], ["bonn"], Messages(Nodes({1: node("bonn")}))

    def hear(line):
        news.append(line)
        if len(keys) == 1:
            keys.append("oslo")  # the next roll brings one more, which is still too few

    coming = ComingSites(None, lambda: keys)
    with pytest.raises(RequestError, match=r"these are there: bonn; missing: oslo; the roll has no more$"):
        wait_for(bonn, 3, 0.5, hear, coming=coming)
    said = [line for line in news if "roll" in line]
    assert [line.split(":")[0] for line in said] == [
        "--sites = 3, and the roll has 1 who can come (bonn)",
        "--sites = 3, and the roll has 2 who can come (bonn, oslo)",
    ]
    assert said[-1].endswith("stop it and ask for at most 2")
    news.clear()
    with pytest.raises(RequestError, match=r"missing: oslo$"):
        wait_for(bonn, 2, 0.5, news.append, coming=coming)
    assert not [line for line in news if "roll" in line]


def test_a_run_that_goes_on_is_refused_more_sites_than_it_has():
    bonn = Messages(Nodes({1: node("bonn")}))
    coming = ComingSites(["bonn", "oslo"], lambda: ["bonn", "oslo", "rome"])
    with pytest.raises(RequestError, match=r"^--sites = 3: .* its own sites, bonn, oslo; allowed: at most 2$"):
        wait_for(bonn, 3, PATIENCE, lambda _: None, coming=coming)


def test_whose_key_counts_no_more_is_not_waited_for_unless_nobody_else_is():
    told, keys = [], ["aachen", "bonn"]
    coming = ComingSites(["aachen", "bonn", "cologne"], lambda: keys, told.append)
    coming.miss({"bonn", "cologne"})
    keys.remove("bonn")
    coming.miss({"bonn", "cologne"})
    coming.miss(())
    assert told == [{"bonn"}, {"bonn", "cologne"}, ()]


def test_an_operator_stops_a_run_that_waits_for_its_sites(tmp_path):
    control = RunControl(tmp_path / "orders.jsonl", "1", lambda: None)
    give_order(control.path, OperatorOrder.of("stop", "1", "ann", None))
    with pytest.raises(StoppedError, match="operator ann stopped the run before it began"):
        wait_for(Messages(Nodes({})), 1, PATIENCE, lambda _: None, control)


def test_a_failure_is_left_in_the_run_folder(tmp_path):
    write_failure(tmp_path / "run", RequestError("train.lr = 0 is not valid"))
    told = (tmp_path / "run" / "failed.json").read_text()
    assert '"message": "train.lr = 0 is not valid"' in told
    assert '"exit_code": 2' in told


def handed(kind, data, **config):
    message = stamp(Message(records.wrap(data), 5, kind), message_id="m")
    return client_app.app(message, Context(1, 5, config, RecordDict(), {}))


def test_the_thin_app_hands_requests_to_the_sites_process(path):
    with Door(lambda request: request[::-1], path):
        reply = handed("train", b"abc", site="bonn", socket=str(path))
        assert records.unwrap(reply.content) == b"cba"
        assert handed("query.site", b"", site="bonn", socket=str(path)).content["site"]["name"] == "bonn"
    for kind in ("train", "query.site"):
        assert "the site's process is not there" in handed(kind, b"", site="bonn", socket=str(path)).error.reason
    assert "node config socket = None is not valid" in handed("train", b"").error.reason


def test_the_thin_app_is_thin():
    found = "import sys, {}; print(sorted({{'torch', 'grpc', 'scipy', 'pydantic'}} & set(sys.modules)))"
    code = [found.format(module) for module in ("fedstrata.remote.flower.client_app", "flwr.clientapp")]
    with_ours, flowers = (subprocess.check_output([sys.executable, "-c", c], text=True) for c in code)
    assert with_ours == flowers
    assert "torch" not in with_ours


def test_the_id_by_which_sites_know_a_run_stands_in_the_server_s_log(tmp_path):
    asked = RunConfig(tmp_path / "e.toml", tmp_path / "first", 3, server=str(tmp_path))
    server_app.log_id(asked, "77", "2e5b782c")
    line = json.loads((tmp_path / "log.jsonl").read_text())
    assert (line["event"], line["number"], line["run"], line["id"]) == ("run_named", "77", "first", "2e5b782c")

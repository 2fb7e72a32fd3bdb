"""The ways to real sites: Flower's messages, a site's socket, and the stream, with what can go wrong on each."""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

pytest.importorskip("flwr")
grpc = pytest.importorskip("grpc")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from fedstrata.core.errors import FedstrataError, RequestError  # noqa: E402
from fedstrata.privacy.frames import RefusedError  # noqa: E402
from fedstrata.remote.flower import client_app, messages, records, stream  # noqa: E402
from fedstrata.remote.flower.app_config import RunConfig  # noqa: E402
from fedstrata.remote.flower.certificate import make_certificate  # noqa: E402
from fedstrata.remote.flower.failure import write_failure  # noqa: E402
from fedstrata.remote.flower.framing import FROM_SITE, HEAD, METHOD, PIECE, Kind, Parcel, parcels  # noqa: E402
from fedstrata.remote.flower.invitation import Invitation  # noqa: E402
from fedstrata.remote.flower.joining import with_stream  # noqa: E402
from fedstrata.remote.flower.messages import Messages  # noqa: E402
from fedstrata.remote.flower.server_app import registered, wait_for, way  # noqa: E402
from fedstrata.remote.flower.stream import open_stream  # noqa: E402
from fedstrata.remote.flower.stream_site import StreamSite  # noqa: E402
from fedstrata.remote.introduction import Introduction  # noqa: E402
from fedstrata.remote.site_socket import Door, ask  # noqa: E402
from fedstrata.remote.transport import Failure  # noqa: E402

MB = 1_000_000


# ---- messages, over a grid that is none --------------------------------------------------------------------------


class Nodes:
    """A grid: node -> a function from a message to its reply, at once, or to (seconds, reply), or to None."""

    def __init__(self, nodes):
        self.nodes, self.waiting, self.asked, self.sent = nodes, {}, [], 0

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, pushed):
        ids = []
        for message in pushed:
            self.sent += 1
            message.metadata.__dict__["_message_id"] = name = f"m{self.sent}"
            node = message.metadata.dst_node_id
            self.asked.append((node, message.metadata.message_type))
            answer = self.nodes[node](message) if node in self.nodes else None
            if answer is not None:
                seconds, reply = answer if isinstance(answer, tuple) else (0.0, answer)
                self.waiting[name] = (time.monotonic() + seconds, reply)
            ids.append(name)
        return ids

    def pull_messages(self, ids):
        ready = [name for name in ids if name in self.waiting and self.waiting[name][0] <= time.monotonic()]
        for name in ready:
            _, reply = self.waiting.pop(name)
            if isinstance(reply, Exception):
                raise reply
            yield reply


@pytest.fixture(autouse=True)
def _a_task(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def node(name, reply=lambda data: data):
    """A node of a site; `reply` gives bytes, anything that a grid may give for a message, or raises."""

    def answered(message):
        if message.metadata.message_type == "query.site":
            return Message(RecordDict({"site": ConfigRecord({"name": name})}), reply_to=message)
        told = reply(records.unwrapped(message.content))
        if isinstance(told, tuple):
            return told[0], Message(records.wrapped(told[1]), reply_to=message)
        if isinstance(told, RecordDict | Error):
            return Message(told, reply_to=message)
        return Message(records.wrapped(told), reply_to=message) if isinstance(told, bytes) else told

    return answered


def known(grid, sites, **how):
    transport = Messages(grid, **how)
    wait_for(transport, sites, 5.0)
    return transport


def test_sites_are_named_by_one_question_each_and_only_while_they_are_there():
    grid = Nodes({7: node("bonn"), 3: node("aachen")})
    transport = known(grid, 2)
    assert transport.names() == ["aachen", "bonn"]
    grid.nodes[5] = node("cologne")
    del grid.nodes[3]
    wait_for(transport, 2, 5.0)
    assert transport.names() == ["bonn", "cologne"]
    assert sorted(grid.asked) == [(3, "query.site"), (5, "query.site"), (7, "query.site")]
    assert transport.exchange({"aachen": b"?", "bonn": b"!"}) == {"bonn": b"!"}
    grid.nodes[3] = node("aachen")
    wait_for(transport, 3, 5.0)
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
    transport = Messages(grid, say=said.append, registered=registered(tmp_path / "nodes.json"))
    transport.names()
    assert transport.names() == ["bonn"]
    assert sorted(text for text in said if "does not have the key" in text) == [
        "node 2 says that it is site cologne, and does not have the key of that site",
        "node 3 says that it is site dortmund, and does not have the key of that site",
    ]
    (tmp_path / "nodes.json").write_text("[]")
    with pytest.raises(FedstrataError, match="which sites may connect"):
        registered(tmp_path / "nodes.json")


def test_the_first_of_two_nodes_with_one_name_keeps_it_until_it_leaves(monkeypatch):
    monkeypatch.setattr(messages, "AGAIN", 0.0)
    grid = Nodes({1: node("bonn", lambda _: b"first")})
    transport = known(grid, 1)
    grid.nodes[2] = node("bonn", lambda _: b"second")
    for _ in range(4):
        assert transport.names() == ["bonn"]
    assert transport.exchange({"bonn": b""}) == {"bonn": b"first"}
    del grid.nodes[1]
    wait_for(transport, 1, 5.0)
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
    assert len(records.wrapped(data)) == 11
    transport = known(Nodes({1: node("bonn", lambda data: data[::-1])}), 1)
    assert transport.exchange({"bonn": data}) == {"bonn": data[::-1]}
    assert transport.exchange({"bonn": b""}) == {"bonn": b""}


def test_a_silent_site_is_left_out_when_the_deadline_passes_and_others_are_not_kept_waiting():
    transport = known(Nodes({1: node("aachen"), 2: node("bonn", lambda _: None)}), 2)
    requests, start = {"aachen": b"1", "bonn": b"2"}, time.monotonic()
    assert transport.exchange(requests, deadline=0.3) == {"aachen": b"1"}
    assert 0.3 <= time.monotonic() - start < 3.0
    start = time.monotonic()
    assert transport.exchange(requests, deadline=20.0, enough=1) == {"aachen": b"1"}
    assert time.monotonic() - start < 5.0


def test_a_failure_is_none_of_those_that_are_enough():
    nodes = {1: node("aachen", lambda _: Error(2, "no")), 2: node("bonn", lambda data: (0.2, data))}
    assert known(Nodes(nodes), 2).exchange({"aachen": b"1", "bonn": b"2"}, 20.0, enough=1) == {
        "aachen": Failure("no"),
        "bonn": b"2",
    }


def test_replies_are_fetched_soon_after_they_come():
    transport = known(Nodes({1: node("bonn", lambda data: (0.4, data))}), 1)
    start = time.monotonic()
    transport.exchange({"bonn": b"x"})
    assert 0.4 <= time.monotonic() - start < 1.4


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
    assert transport.exchange({"aachen": b"1", "bonn": b"2"}, 5.0) == {"aachen": Failure(reason), "bonn": b"2"}


def test_a_reply_of_another_node_is_refused():
    def foreign(message):
        reply = node("aachen")(message)
        if message.metadata.message_type == "train":
            reply.metadata.__dict__["_src_node_id"] = 2
        return reply

    transport = known(Nodes({1: foreign, 2: node("bonn")}), 2)
    assert transport.exchange({"aachen": b"1"}, 5.0) == {"aachen": Failure("its reply comes from another node")}


def test_what_flower_does_not_take_is_a_failure():
    grid = Nodes({1: node("bonn")})
    transport = known(grid, 1)
    for nothing in ([], [None], [""]):
        grid.push_messages = lambda pushed, nothing=nothing: nothing
        assert transport.exchange({"bonn": b"1"}, 5.0) == {"bonn": Failure("Flower did not take the message")}


# ---- the server's app ---------------------------------------------------------------------------------------------


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


def test_a_failure_is_left_in_the_run_folder(tmp_path):
    write_failure(tmp_path / "run", RequestError("train.lr = 0 is not valid"))
    told = (tmp_path / "run" / "failed.json").read_text()
    assert '"message": "train.lr = 0 is not valid"' in told
    assert '"exit_code": 2' in told


# ---- the socket of a site's process --------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder / "s"


def test_requests_go_in_and_replies_come_out(path):
    data = random.Random(0).randbytes(25 * MB)
    with Door(lambda request: request[::-1], path):
        assert path.stat().st_mode & 0o777 == 0o600
        assert ask(path, b"abc") == b"cba"
        assert [ask(path, b"") for _ in range(200)] == [b""] * 200
        assert ask(path, data, 20.0) == data[::-1]
    with pytest.raises(FedstrataError, match="the site's process is not there"):
        ask(path, b"abc")


def test_several_requests_are_under_way_at_once(path):
    meet = threading.Barrier(3)

    def together(request):
        meet.wait(5.0)
        return request

    replies = {}
    with Door(together, path):
        threads = [
            threading.Thread(target=lambda i=i: replies.update({i: ask(path, b"%d" % i, 5.0)})) for i in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert replies == {i: b"%d" % i for i in range(3)}


def test_an_error_comes_back_in_words_that_quote_no_data(path, caplog):
    def fails(request):
        if request == b"ours":
            raise RequestError("site = 7 is not valid")
        raise ValueError("patient 4711")

    with Door(fails, path):
        with pytest.raises(FedstrataError, match=r"^site = 7 is not valid$"):
            ask(path, b"ours")
        with pytest.raises(FedstrataError, match=r"^ValueError \(the site's own log says where\)$"):
            ask(path, b"other")
    assert "patient 4711" in caplog.text


def test_a_process_that_is_slow_or_dies_is_not_waited_for(path):
    with Door(lambda request: time.sleep(1.0) or request, path), pytest.raises(FedstrataError, match="within 0"):
        ask(path, b"x", 0.2)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    threading.Thread(target=lambda: listening.accept()[0].close()).start()  # noqa: PLW0108 - it accepts when it runs
    with pytest.raises(FedstrataError, match="ended before it answered"):
        ask(path, b"x" * MB, 5.0)
    listening.close()


def test_the_door_is_private_and_has_one_owner(path, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(RequestError, match="mode 700"):
        Door(bytes, tmp_path / "open" / "s")
    with pytest.raises(RequestError, match="too long"):
        Door(bytes, path.parent / ("x" * 100))
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    with Door(bytes, path), pytest.raises(RequestError, match="another process already serves"):
        Door(bytes, path)
    path.write_text("mine")
    with pytest.raises(RequestError, match="is a file already"):
        Door(bytes, path)


# ---- the thin app at a site ---------------------------------------------------------------------------------------


def handed(kind, data, **config):
    message = Message(records.wrapped(data), 5, kind)
    message.metadata.__dict__["_message_id"] = "m"
    return client_app.app(message, Context(1, 5, config, RecordDict(), {}))


def test_the_thin_app_hands_requests_to_the_sites_process(path):
    with Door(lambda request: request[::-1], path):
        reply = handed("train", b"abc", site="bonn", socket=str(path))
        assert records.unwrapped(reply.content) == b"cba"
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


# ---- frames ----------------------------------------------------------------------------------------------------------


def test_messages_are_cut_and_joined():
    bodies = [b"", b"x", os.urandom(PIECE), os.urandom(PIECE + 1), os.urandom(3 * PIECE)]
    sent = [Parcel(Kind.REPLY, i, body) for i, body in enumerate(bodies)]
    frames = [frame for parcel in sent for frame in parcel.frames()]
    assert len(frames) == 1 + 1 + 1 + 2 + 3
    assert max(map(len, frames)) == PIECE + HEAD.size
    assert list(parcels(frames, FROM_SITE, 3 * PIECE)) == sent
    assert list(parcels(frames[:-1], FROM_SITE, 3 * PIECE)) == sent[:-1]


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([b"short"], "cut off"),
        ([HEAD.pack(Kind.REQUEST, 1, 0)], "out of place"),
        ([HEAD.pack(99, 1, 0)], "out of place"),
        ([HEAD.pack(Kind.REPLY, 1, 1001)], "too long"),
        ([HEAD.pack(Kind.REPLY, 1, 2) + b"xxx"], "longer than it says"),
        ([HEAD.pack(Kind.REPLY, 1, 2) + b"x", b""], "empty"),
        ([HEAD.pack(Kind.REPLY, 1, 2) + b"x", b"xx"], "longer than it says"),
    ],
)
def test_frames_that_do_not_fit_are_refused(frames, why):
    with pytest.raises(RefusedError, match=why):
        list(parcels(frames, FROM_SITE, 1000))


def test_an_invitation_is_checked():
    good = Invitation("[::1]:80", make_certificate("::1")[2].decode(), "0" * 64, "bonn", "run-1", 5.0)
    assert Invitation.read(good.written()) == good
    for wrong in (
        {"address": "bonn"},
        {"authority": "none"},
        {"token": "0"},
        {"site": "../x"},
        {"run": ""},
        {"grace": -1},
        {"grace": "1"},
    ):
        with pytest.raises(RefusedError, match=next(iter(wrong))):
            Invitation.read(replace(good, **wrong).written())
    for wrong in (b"", b"fedstrata stream\n[]", b"fedstrata stream\n{}", good.written() + b" " * 70_000):
        with pytest.raises(RefusedError, match="other fields"):
            Invitation.read(wrong)


# ---- the stream, on loopback, with TLS ----------------------------------------------------------------------------


class Loopback:
    """Carries long messages to sites in this process; each call is made in a thread of the stream's own."""

    def __init__(self, sites):
        self.sites = {name: with_stream(answer) for name, answer in sites.items()}
        self.invitations, self.answers = {}, {}

    def names(self):
        return sorted(self.sites)

    def exchange(self, requests, deadline=None, enough=None):
        ((name, request),) = requests.items()
        self.invitations[name] = Invitation.read(request)
        try:
            self.answers[name] = self.sites[name](request)
        except FedstrataError as error:
            self.answers[name] = Failure(str(error))
        return {name: self.answers[name]}

    def close(self):
        pass


@contextmanager
def streaming(sites, address="127.0.0.1:0", **how):
    before = threading.active_count()
    messages = Loopback(sites)
    opened = open_stream(messages, address, "run-1", **({"patience": 20.0, "grace": 2.0} | how))
    try:
        yield opened, messages
    finally:
        opened.close()
    until = time.monotonic() + 5.0
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.02)
    assert threading.active_count() <= before, threading.enumerate()


ECHO = {"aachen": bytes, "bonn": bytes, "cologne": bytes}


def everybody(data):
    return dict.fromkeys(ECHO, data)


def test_three_sites_answer_over_the_stream_and_go_when_it_ends():
    with streaming(ECHO) as (opened, messages):
        assert opened.names() == ["aachen", "bonn", "cologne"]
        for i in range(50):
            requests = {name: f"{name} {i}".encode() for name in ECHO}
            assert opened.exchange(requests, 5.0) == requests
        assert opened.exchange({"bonn": b"alone", "nobody": b""}) == {"bonn": b"alone"}
        assert opened.exchange({}) == {}
    assert messages.answers == {"aachen": b"50", "bonn": b"51", "cologne": b"50"}


def test_long_messages_go_over_the_stream():
    data = random.Random(0).randbytes(25 * MB)
    with streaming({name: lambda request: request[::-1] for name in ECHO}) as (opened, _):
        assert opened.exchange(everybody(data), 30.0) == everybody(data[::-1])


def test_a_message_that_is_too_long_puts_its_site_out_and_nobody_else():
    sites = ECHO | {"bonn": lambda request: b"x" * 5000}
    with streaming(sites, longest=4000) as (opened, _):
        replies = opened.exchange(everybody(b"1"), 10.0)
        assert replies["aachen"] == replies["cologne"] == b"1"
        assert "a message of 5000 bytes is too long" in replies["bonn"].reason
        assert opened.exchange(everybody(b"2"), 10.0) == {"aachen": b"2", "cologne": b"2"}
        assert opened.names() == ["aachen", "cologne"]


def test_what_a_site_cannot_do_it_says():
    def fails(request):
        raise RequestError("train.lr = 0 is not valid")

    with streaming(ECHO | {"bonn": fails}) as (opened, _):
        for _ in range(2):
            replies = opened.exchange(everybody(b"1"), 5.0)
            assert replies == everybody(b"1") | {"bonn": Failure("train.lr = 0 is not valid")}
        start = time.monotonic()
        assert len(opened.exchange(everybody(b"1"), 5.0, enough=2)) >= 2
        assert time.monotonic() - start < 2.0


def test_a_site_that_is_slow_is_left_out_and_does_not_begin_what_nobody_waits_for():
    begun = []

    def slow(request):
        begun.append(request)
        time.sleep(2.0 if request == b"slow" else 0.0)
        return request

    with streaming(ECHO | {"bonn": slow}) as (opened, _):
        start = time.monotonic()
        assert opened.exchange(everybody(b"slow"), 0.3) == {"aachen": b"slow", "cologne": b"slow"}
        assert 0.3 <= time.monotonic() - start < 1.5
        assert set(opened.exchange(everybody(b"given up"), 0.2)) == {"aachen", "cologne"}
        assert set(opened.exchange(everybody(b"given up"), enough=2)) == {"aachen", "cologne"}
        assert opened.exchange(everybody(b"waited for"), 5.0) == everybody(b"waited for")
        assert begun == [b"slow", b"waited for"]
        assert opened.names() == sorted(ECHO)


DIES = """
import os, sys
from fedstrata.remote.flower.joining import with_stream
with_stream(lambda request: os._exit(3) if request == b"die" else request)(sys.stdin.buffer.read())
"""


def test_a_site_that_dies_in_mid_exchange_is_given_up_and_comes_back_when_it_is_there_again(monkeypatch):
    monkeypatch.setattr(stream, "LOOK", 0.2)

    def elsewhere(request):
        done = subprocess.run([sys.executable, "-c", DIES], input=request, check=False)
        if done.returncode:
            raise FedstrataError(f"the process ended with {done.returncode}")
        return b""

    with streaming(ECHO, grace=1.0) as (opened, messages):
        messages.sites["dortmund"] = elsewhere
        opened.invite(["dortmund"])
        opened.wait(["dortmund"], 20.0)
        assert opened.exchange({"dortmund": b"1"}, 5.0) == {"dortmund": b"1"}
        start = time.monotonic()
        assert opened.exchange(everybody(b"die") | {"dortmund": b"die"}) == everybody(b"die")
        assert 0.9 < time.monotonic() - start < 5.0
        assert "dortmund" not in opened.names()
        assert opened.exchange(everybody(b"2") | {"dortmund": b"2"}) == everybody(b"2")
        until = time.monotonic() + 20.0
        while "dortmund" not in opened.names() and time.monotonic() < until:
            time.sleep(0.1)
        assert opened.exchange({"dortmund": b"again"}, 5.0) == {"dortmund": b"again"}
    assert messages.answers["dortmund"] == b""


# ---- who may come in ---------------------------------------------------------------------------------------------


def refused(invitation, **wrong):
    with pytest.raises(FedstrataError) as raised:
        StreamSite(replace(invitation, **wrong), bytes).run()
    return str(raised.value)


def test_a_token_is_of_one_site_in_one_run_and_is_used_once():
    said = []
    with streaming(ECHO, say=said.append) as (opened, messages):
        bonn = messages.invitations["bonn"]
        assert len({invitation.token for invitation in messages.invitations.values()}) == 3
        foreign = "the token is not this site's in this run"
        assert foreign in refused(bonn, token=secrets.token_hex(32))
        assert foreign in refused(bonn, token=messages.invitations["aachen"].token)
        assert foreign in refused(bonn, site="nobody")
        assert foreign in refused(bonn, run="run-2")
        assert "the token was used before" in refused(bonn)
        assert len(said) == 5
        assert all("the stream refused ipv4:127.0.0.1" in text for text in said)
        assert bonn.token not in "".join(said)
        assert opened.exchange(everybody(b"1"), 5.0) == everybody(b"1")
    assert "cannot be reached" in refused(bonn, grace=0.5)


def test_a_site_trusts_no_other_server(capfd):
    with streaming(ECHO) as (opened, messages):
        foreign = make_certificate("127.0.0.1")[2].decode()
        start = time.monotonic()
        assert "cannot be reached" in refused(messages.invitations["bonn"], authority=foreign, grace=1.0)
        assert time.monotonic() - start < 8.0
        local = opened.address.replace(
            "127.0.0.1", "localhost"
        )  # the certificate is for the address, and no other name
        assert "cannot be reached" in refused(messages.invitations["bonn"], address=local, grace=0.5)
        with grpc.insecure_channel(opened.address) as plain, pytest.raises(grpc.RpcError):
            next(plain.stream_stream(METHOD)(iter([])))
        assert opened.exchange(everybody(b"1"), 5.0) == everybody(b"1")


def test_where_a_site_does_not_reach_the_stream_messages_carry_everything(tmp_path):
    class Walled(Loopback):
        def exchange(self, requests, deadline=None, enough=None):
            ((name, _),) = requests.items()
            return {name: Failure("no route to host")} if name == "bonn" else super().exchange(requests)

    paths = {"experiment": str(tmp_path / "e.toml"), "out": str(tmp_path / "run")}
    asked = RunConfig.of(paths | {"sites": 3, "stream": "127.0.0.1:0"})
    messages = Walled(ECHO)
    assert way(messages, asked, "run-1") == (messages, "bonn: no route to host")
    assert messages.answers == {"aachen": b"0", "cologne": b"0"}  # whoever came was let go
    few, why = way(Walled(ECHO), replace(asked, sites=2), "run-1")
    assert (few.names(), why) == (["aachen", "cologne"], None)
    few.close()
    with pytest.raises(FedstrataError, match=r"no site came onto the stream .*bonn: no route"):
        way(Walled({"bonn": bytes}), replace(asked, sites=1, fine=True), "run-1")
    nowhere, why = way(Walled({"bonn": bytes}), replace(asked, sites=1), "run-1")
    assert isinstance(nowhere, Walled)
    assert "no route to host" in why


def test_a_site_that_comes_after_its_run_went_on_is_invited_to_the_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "LOOK", 0.1)
    facts = Introduction((8, 8), "float32", (0, 1), 5, 1, 1.0, None, None, "x").dump()
    (tmp_path / "sites.json").write_text(json.dumps({"run": "r", "sites": dict.fromkeys(ECHO, facts)}))
    told = {"experiment": str(tmp_path / "e.toml"), "out": str(tmp_path), "sites": 2, "resume": True}
    messages = Loopback({name: bytes for name in ECHO if name != "bonn"} | {"dortmund": bytes})
    opened, _ = way(messages, RunConfig.of(told | {"stream": "127.0.0.1:0"}), "run-1")
    try:
        assert opened.names() == ["aachen", "cologne"]
        messages.sites["bonn"] = with_stream(bytes)
        until = time.monotonic() + 10.0
        while "bonn" not in opened.names() and time.monotonic() < until:
            time.sleep(0.05)
        assert opened.names() == sorted(ECHO)  # and nobody else
    finally:
        opened.close()


def test_nobody_on_the_stream_is_an_error_with_the_reasons():
    class Deaf(Loopback):
        def exchange(self, requests, deadline=None, enough=None):
            return {name: Failure("no route to host") for name in requests}

    with pytest.raises(
        FedstrataError, match=r"no site came onto the stream .*aachen: no route to host; bonn: no route"
    ):
        open_stream(Deaf(ECHO), "127.0.0.1:0", "run-1", patience=10.0)


def test_an_address_that_cannot_be_used_is_refused():
    with pytest.raises(RequestError, match='stream = "bonn" is not valid'):
        open_stream(Loopback(ECHO), "bonn", "run-1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RequestError, match="cannot be listened at"):
            open_stream(Loopback(ECHO), f"127.0.0.1:{taken.getsockname()[1]}", "run-1")


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"rubbish", "cut off"),
        (HEAD.pack(Kind.END, 1, 0), "out of place"),
        (HEAD.pack(Kind.REPLY, 77, 0), "it answers request 77"),
        (HEAD.pack(Kind.REPLY, 1, 1 << 40), "too long"),
    ],
)
def test_a_site_that_breaks_the_rules_is_out(frame, why):
    class Rude(Loopback):
        def exchange(self, requests, deadline=None, enough=None):
            ((name, request),) = requests.items()
            if name != "bonn":
                return super().exchange(requests)
            bonn = self.invitations["bonn"] = Invitation.read(request)
            about = {"run": bonn.run, "site": bonn.site, "token": bonn.token, "secret": "s" * 64}
            with grpc.secure_channel(bonn.address, grpc.ssl_channel_credentials(bonn.authority.encode())) as channel:
                say = threading.Event()

                def speech():
                    say.wait(10.0)
                    yield frame

                call = channel.stream_stream(METHOD)(
                    speech(), metadata=[(f"fedstrata-{k}", v) for k, v in about.items()]
                )
                with suppress(grpc.RpcError):
                    next(call)  # welcome
                    next(call)  # a request
                    say.set()
                    next(call)
            return {name: b""}

    said, messages = [], Rude(ECHO)
    opened = open_stream(messages, "127.0.0.1:0", "run-1", patience=20.0, grace=2.0, say=said.append)
    try:
        replies = opened.exchange(everybody(b"1"), 10.0)
        assert replies.keys() == ECHO.keys()
        assert why in replies["bonn"].reason
        assert opened.names() == ["aachen", "cologne"]
        assert "the stream is over" in refused(messages.invitations["bonn"]) or "used before" in said[-1]
    finally:
        opened.close()


# ---- connections that break ----------------------------------------------------------------------------------------


class Relay:
    """Stands between sites and server; it can cut every connection, and swallow what sites say."""

    def __init__(self):
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port, self.to, self._pairs, self.open, self.mute = self._door.getsockname()[1], 0, [], True, False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                if not self.open:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.to))
                self._pairs += [near, far]
                for a, b, from_site in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._carry, args=(a, b, from_site), daemon=True).start()

    def _carry(self, a, b, from_site):
        with suppress(OSError):
            while data := a.recv(1 << 16):
                if not (from_site and self.mute):
                    b.sendall(data)
        for end in (a, b):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        for end in self._pairs:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._pairs = []

    def close(self):
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self.cut()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def relayed(sites, **how):
    relay = Relay()
    relay.to = free_port()
    try:
        listen = f"127.0.0.1:{relay.to}"
        with streaming(sites, f"127.0.0.1:{relay.port}", listen=listen, **({"grace": 8.0} | how)) as (opened, messages):
            yield relay, opened, messages
            relay.open = True
    finally:
        relay.close()


def test_a_connection_that_breaks_is_made_again_and_nothing_is_done_twice():
    done, at_work = [], threading.Semaphore(0)

    def works(request):
        at_work.release()
        time.sleep(0.5 if request == b"long" else 0.0)
        done.append(request)
        return request

    with relayed(dict.fromkeys(ECHO, works)) as (relay, opened, messages):
        assert opened.exchange(everybody(b"1"), 5.0) == everybody(b"1")

        def cut():
            for _ in range(6):
                at_work.acquire()
            relay.cut()

        threading.Thread(target=cut).start()
        assert opened.exchange(everybody(b"long"), 20.0) == everybody(b"long")
        relay.cut()  # between two exchanges
        assert opened.exchange(everybody(b"2"), 20.0) == everybody(b"2")
        assert sorted(done) == sorted(3 * [b"1", b"long", b"2"])
        assert opened.names() == sorted(ECHO)
        assert "the token was used before" in refused(messages.invitations["bonn"])  # also after a break


def test_an_answer_that_was_lost_on_its_way_is_sent_again():
    done = []
    with relayed({"bonn": lambda request: done.append(request) or request}) as (relay, opened, _):
        relay.mute = True

        def cut():
            while not done:
                time.sleep(0.01)
            time.sleep(0.2)
            relay.mute = False
            relay.cut()

        threading.Thread(target=cut).start()
        assert opened.exchange({"bonn": b"1"}, 7.0) == {"bonn": b"1"}
        assert done == [b"1"]


def test_a_site_that_stays_away_is_given_up_and_gives_up():
    with relayed(ECHO, grace=1.0) as (relay, opened, messages):
        relay.open = False
        relay.cut()
        start = time.monotonic()
        assert opened.exchange(everybody(b"1")) == {}
        assert time.monotonic() - start < 5.0
        assert opened.names() == []
        until = time.monotonic() + 5.0
        while len(messages.answers) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        assert all("cannot be reached" in answer.reason for answer in messages.answers.values())
        messages.sites = {}


def test_a_token_opens_the_stream_so_many_times(monkeypatch):
    monkeypatch.setattr(stream, "RETURNS", 1)
    with relayed(ECHO, grace=3.0) as (relay, opened, messages):
        relay.cut()
        assert opened.exchange(everybody(b"1"), 20.0) == everybody(b"1")
        messages.sites = {}
        relay.cut()
        assert opened.exchange(everybody(b"2"), 6.0) == {}
        assert all("the stream is over for this site" in answer.reason for answer in messages.answers.values())

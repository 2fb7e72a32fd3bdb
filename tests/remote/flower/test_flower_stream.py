"""The stream to sites: its frames, exchanges over it, and who may come in."""

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
from dataclasses import replace

import pytest

pytest.importorskip("flwr")
grpc = pytest.importorskip("grpc")

from streams import ECHO, PATIENCE, Loopback, OwnFrames, everybody, refused, streaming, wait_until  # noqa: E402

from fedstrata.core.errors import FedstrataError, RequestError  # noqa: E402
from fedstrata.privacy.frames import RefusedError  # noqa: E402
from fedstrata.remote.flower import stream  # noqa: E402
from fedstrata.remote.flower.app_config import RunConfig  # noqa: E402
from fedstrata.remote.flower.certificate import make_certificate  # noqa: E402
from fedstrata.remote.flower.framing import FROM_SITE, HEAD, METHOD, PIECE, Kind, Parcel, parcels  # noqa: E402
from fedstrata.remote.flower.invitation import Invitation  # noqa: E402
from fedstrata.remote.flower.joining import with_stream  # noqa: E402
from fedstrata.remote.flower.server_app import way  # noqa: E402
from fedstrata.remote.flower.stream import open_stream  # noqa: E402
from fedstrata.remote.introduction import Introduction  # noqa: E402
from fedstrata.remote.transport import Failure  # noqa: E402

MB = 1_000_000


def test_messages_are_cut_and_joined():
    bodies = [b"", b"x", os.urandom(PIECE), os.urandom(PIECE + 1), os.urandom(3 * PIECE)]
    sent = [Parcel(Kind.REPLY, i, body) for i, body in enumerate(bodies)]
    frames = [frame for parcel in sent for frame in parcel.frames()]
    assert len(frames) == 1 + 1 + 1 + 2 + 3
    assert max(map(len, frames)) == PIECE + HEAD.size
    assert list(parcels(frames, FROM_SITE, lambda _: 3 * PIECE)) == sent
    assert list(parcels(frames[:-1], FROM_SITE, lambda _: 3 * PIECE)) == sent[:-1]


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
        list(parcels(frames, FROM_SITE, lambda _: 1000))


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


def test_three_sites_answer_over_the_stream_and_go_when_it_ends():
    with streaming(ECHO) as (opened, messages):
        assert opened.names() == ["aachen", "bonn", "cologne"]
        for i in range(50):
            requests = {name: f"{name} {i}".encode() for name in ECHO}
            assert opened.exchange(requests, PATIENCE) == requests
        assert opened.exchange({"bonn": b"alone", "nobody": b""}) == {"bonn": b"alone"}
        assert opened.exchange({}) == {}
    assert messages.answers == {"aachen": b"50", "bonn": b"51", "cologne": b"50"}


def test_long_messages_go_over_the_stream():
    data = random.Random(0).randbytes(25 * MB)
    with streaming({name: lambda request: request[::-1] for name in ECHO}, longest=len(data)) as (opened, _):
        assert opened.exchange(everybody(data), PATIENCE) == everybody(data[::-1])


def test_a_message_that_is_too_long_puts_its_site_out_and_nobody_else():
    sites = ECHO | {"bonn": lambda request: b"x" * 5000}
    with streaming(sites, longest=4000, grace=1.0) as (opened, _):
        replies = opened.exchange(everybody(b"1"), PATIENCE)
        assert replies["aachen"] == replies["cologne"] == b"1"
        assert "a message of 5000 bytes is too long" in replies["bonn"].reason
        assert opened.exchange(everybody(b"2"), PATIENCE) == {"aachen": b"2", "cologne": b"2"}
        assert opened.names() == ["aachen", "cologne"]


def test_a_site_whose_key_is_renewed_leaves_and_comes_back_with_the_new_one(monkeypatch):
    """A connection that was opened with the old key is ended, however soon the new one is registered."""
    monkeypatch.setattr(stream, "LOOK", 0.05)
    nodes = {name: at for at, name in enumerate(ECHO)}
    monkeypatch.setattr(Loopback, "registrations", lambda _: dict(nodes), raising=False)
    with streaming(ECHO, grace=1.0) as (opened, carrier):
        first = carrier.invitations["bonn"]
        nodes["bonn"] = 7
        wait_until(lambda: carrier.invitations["bonn"] != first and "bonn" in opened.names())
        assert opened.exchange(everybody(b"1"), PATIENCE) == everybody(b"1")
        assert refused(first) != ""
        second = carrier.invitations["bonn"]
        del nodes["bonn"]
        wait_until(lambda: opened.names() == ["aachen", "cologne"])
        assert opened.exchange(everybody(b"2"), PATIENCE) == {"aachen": b"2", "cologne": b"2"}
        assert carrier.invitations["bonn"] == second, "who was revoked is not invited"


def test_a_look_for_sites_that_fails_does_not_keep_revoked_ones_on_the_stream(monkeypatch):
    monkeypatch.setattr(stream, "LOOK", 0.01)
    nodes, looks = {name: at for at, name in enumerate(ECHO)}, []

    def registrations(_):
        looks.append(len(looks))
        if 3 < len(looks) < 8:
            raise OSError("the database is locked")
        return dict(nodes)

    monkeypatch.setattr(Loopback, "registrations", registrations, raising=False)
    said = []
    with streaming(ECHO, grace=1.0, say=said.append) as (opened, _):
        wait_until(lambda: len(looks) > 8)
        del nodes["bonn"]
        wait_until(lambda: opened.names() == ["aachen", "cologne"])
    assert [line for line in said if "database is locked" in line] == [
        "nobody is invited to the stream or shut out for now, which is tried again: the database is locked"
    ]


def test_what_a_site_cannot_do_it_says():
    def fails(request):
        raise RequestError("train.lr = 0 is not valid")

    with streaming(ECHO | {"bonn": fails}) as (opened, _):
        for _ in range(2):
            replies = opened.exchange(everybody(b"1"), PATIENCE)
            assert replies == everybody(b"1") | {"bonn": Failure("train.lr = 0 is not valid")}
        assert len(opened.exchange(everybody(b"1"), PATIENCE, enough=2)) >= 2


def begun_by_a_slow_site(pause):
    """Return what a site began that was left out of three exchanges; `pause` is how long it takes it to hear so."""
    begun, run = [], threading.Event()

    def slow(request):
        begun.append(request)
        if request == b"slow":
            run.wait(PATIENCE)
        return request

    with streaming(ECHO | {"bonn": slow}) as (opened, _):
        start = time.monotonic()
        assert "bonn" not in opened.exchange(everybody(b"slow"), 0.3)
        assert time.monotonic() - start >= 0.3
        assert "bonn" not in opened.exchange(everybody(b"given up"), 0.2)
        assert set(opened.exchange(everybody(b"given up"), enough=2)) == {"aachen", "cologne"}
        time.sleep(pause)
        run.set()
        assert opened.exchange(everybody(b"waited for"), PATIENCE) == everybody(b"waited for")
        assert opened.names() == sorted(ECHO)
    return begun


def test_a_site_that_is_slow_is_left_out_and_does_not_begin_what_nobody_waits_for():
    assert any(begun_by_a_slow_site(pause) == [b"slow", b"waited for"] for pause in (0.2, 2.0, 20.0))


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
        opened.wait(["dortmund"], PATIENCE)
        assert opened.exchange({"dortmund": b"1"}, PATIENCE) == {"dortmund": b"1"}
        start = time.monotonic()
        assert opened.exchange(everybody(b"die") | {"dortmund": b"die"}) == everybody(b"die")
        assert time.monotonic() - start > 0.9
        assert "dortmund" not in opened.names()
        assert opened.exchange(everybody(b"2") | {"dortmund": b"2"}) == everybody(b"2")
        wait_until(lambda: "dortmund" in opened.names())
        assert opened.exchange({"dortmund": b"again"}, PATIENCE) == {"dortmund": b"again"}
    assert messages.answers["dortmund"] == b""


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
        assert opened.exchange(everybody(b"1"), PATIENCE) == everybody(b"1")
    assert "cannot be reached" in refused(bonn, grace=0.5)


def test_a_site_trusts_no_other_server(capfd):
    with streaming(ECHO) as (opened, messages):
        foreign = make_certificate("127.0.0.1")[2].decode()
        assert "cannot be reached" in refused(messages.invitations["bonn"], authority=foreign, grace=0.5)
        local = opened.address.replace(
            "127.0.0.1", "localhost"
        )  # the certificate is for the address, and no other name
        assert "cannot be reached" in refused(messages.invitations["bonn"], address=local, grace=0.5)
        with grpc.insecure_channel(opened.address) as plain, pytest.raises(grpc.RpcError):
            next(plain.stream_stream(METHOD)(iter([])))
        assert opened.exchange(everybody(b"1"), PATIENCE) == everybody(b"1")


def test_where_a_site_does_not_reach_the_stream_messages_carry_everything(tmp_path):
    class Walled(Loopback):
        def exchange(self, requests, deadline=None, enough=None):
            ((name, _),) = requests.items()
            return {name: Failure("no route to host")} if name == "bonn" else super().exchange(requests)

    paths = {"experiment": str(tmp_path / "e.toml"), "out": str(tmp_path / "run")}
    asked = RunConfig.of(paths | {"sites": 3, "stream": "127.0.0.1:0"})
    messages = Walled(ECHO)
    assert way(messages, asked, "run-1") == (messages, "bonn: no route to host", {})
    assert messages.answers == {"aachen": b"0", "cologne": b"0"}  # whoever came was let go
    few, why, absent = way(Walled(ECHO), replace(asked, sites=2), "run-1")
    assert (few.names(), why, absent) == (["aachen", "cologne"], None, {"bonn": "no route to host"})
    few.close()
    with pytest.raises(FedstrataError, match=r"no site came onto the stream .*bonn: no route"):
        way(Walled({"bonn": bytes}), replace(asked, sites=1, fine=True), "run-1")
    nowhere, why, _ = way(Walled({"bonn": bytes}), replace(asked, sites=1), "run-1")
    assert isinstance(nowhere, Walled)
    assert "no route to host" in why


def test_a_site_that_comes_after_its_run_went_on_is_invited_to_the_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "LOOK", 0.1)
    facts = Introduction((8, 8), "float32", (0, 1), 5, 1, 1.0, None, None, "x").dump()
    (tmp_path / "sites.json").write_text(json.dumps({"run": "r", "sites": dict.fromkeys(ECHO, facts)}))
    told = {"experiment": str(tmp_path / "e.toml"), "out": str(tmp_path), "sites": 2, "resume": True}
    messages = Loopback({name: bytes for name in ECHO if name != "bonn"} | {"dortmund": bytes})
    opened, *_ = way(messages, RunConfig.of(told | {"stream": "127.0.0.1:0"}), "run-1")
    try:
        assert opened.names() == ["aachen", "cologne"]
        messages.sites["bonn"] = with_stream(bytes)
        wait_until(lambda: "bonn" in opened.names())
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
        open_stream(Deaf(ECHO), "127.0.0.1:0", "run-1", patience=PATIENCE)


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
    messages = OwnFrames(ECHO, [frame])
    opened = open_stream(messages, "127.0.0.1:0", "run-1", patience=PATIENCE, grace=PATIENCE)
    try:
        replies = opened.exchange(everybody(b"1"), PATIENCE)
        assert replies.keys() == ECHO.keys()
        assert why in replies["bonn"].reason
        assert opened.names() == ["aachen", "cologne"]
        answer = refused(messages.invitations["bonn"])  # it depends on whether its leaving was noticed already
        assert "the stream is over" in answer or "used before" in answer
    finally:
        opened.close()

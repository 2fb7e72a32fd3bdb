"""What a site can do to a server and its run by sending too much, too long words, or nothing at all."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

import pytest
from in_process_sites import SITES, SMALL, Here, at_sites, hosts

from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.plain_text import WORDS, plain_text
from fedstrata.core.wire import pack_report, unpack_report
from fedstrata.remote.introduction import Introduction
from fedstrata.remote.protocol import FAILED, SiteError, build_reply, join, read_reply, split
from fedstrata.remote.server.session import DEADLINE, run_at_sites
from fedstrata.remote.transport import SMALL as SMALL_REPLY
from fedstrata.remote.transport import Failure

ESCAPES = "gone\x1b[2J\x1b]0;owned\x07\r\nround 9: accuracy 1.0\u202e"


def test_words_of_a_site_are_short_and_plain_whichever_way_they_come():
    for long in (ESCAPES, "x" * 10_000_000, "\x1b" * 10_000_000):
        with pytest.raises(SiteError) as raised:
            read_reply(join([FAILED, long.encode()]), 1)
        for said in (str(raised.value), Failure(long).reason, plain_text(long)):
            assert len(said) <= WORDS
            assert said.isprintable()
    assert plain_text("Zürich: no data") == "Zürich: no data"


def test_a_site_cannot_fill_the_events_of_a_run_with_its_refusals(tmp_path):
    def tamper(name, kind, reply):
        return join([FAILED, (ESCAPES + "y" * 30_000_000).encode()]) if (name, kind) == ("bonn", "task") else reply

    run = at_sites(tmp_path, {}, tamper)
    assert (run.path / "events.jsonl").stat().st_size < 100_000
    whys = [event["why"] for event in run.events() if event["event"] == "site_refused"]
    assert len(whys) == 1  # it is said once, and counted
    assert all(why.startswith("gone [2J") and why.isprintable() for why in whys)


METRICS = {
    "long text": {"note": "z" * 100_000},
    "many": {f"m{i}": 1.0 for i in range(10_000)},
    "long name": {"n" * 100_000: 1.0},
    "escapes in a text": {"note": ESCAPES},
    "escapes in a name": {ESCAPES: 1.0},
}


@pytest.mark.parametrize("metrics", METRICS.values(), ids=METRICS)
def test_a_site_cannot_fill_the_events_of_a_run_with_its_metrics(tmp_path, metrics):
    def tamper(name, kind, reply):
        if (name, kind) != ("bonn", "task"):
            return reply
        _, said, data = split(reply)
        report = unpack_report(data)
        return build_reply(said, pack_report(type(report)(**(vars(report) | {"metrics": metrics}))))

    run = at_sites(tmp_path, {}, tamper)
    assert (run.path / "events.jsonl").stat().st_size < 100_000
    assert sum(event["event"] == "site_refused" for event in run.events()) == 1
    assert [event.get("refused") for event in run.events() if event["event"] == "round"] == [None, *[{"bonn": 1}] * 2]


@pytest.mark.parametrize("labels", [["x" * 201], ["a\x1b[2J"], list(range(100_001))])
def test_labels_of_a_site_are_names(labels):
    values = {"shape": [2], "dtype": "float32", "samples": 1, "tests": 1, "scale": 1.0, "mean": None, "std": None}
    with pytest.raises(RequestError, match="site bonn has labels that are no plain text"):
        Introduction.read({**values, "fingerprint": "f", "classes": labels}, "bonn")


class Slow(Here):
    """Has one site that never answers a task, and notes how long the server is willing to wait."""

    def __init__(self, there):
        super().__init__(there, lambda name, kind, reply: None if (name, kind) == ("bonn", "task") else reply)
        self.deadlines = set()

    def exchange(self, requests, deadline=None, enough=None):
        self.deadlines.add(deadline)
        return super().exchange(requests, deadline, enough)


@pytest.mark.parametrize(
    ("asked", "experiment", "most"), [(None, 0.0, DEADLINE), (0.0, 0.0, DEADLINE), (7.0, 9.0, 7.0), (None, 9.0, 9.0)]
)
def test_a_silent_site_does_not_stop_a_run(tmp_path, asked, experiment, most):
    overrides = SMALL | {"system.deadline": experiment}
    transport = Slow(hosts(overrides))
    run = run_at_sites(transport, Experiment.of(None, **overrides), tmp_path / "run", len(SITES), deadline=asked)
    assert run.summary["rounds"] == 3
    assert all(wait is not None and 0 < wait <= most for wait in transport.deadlines)


def test_replies_are_bounded_by_what_the_model_can_need(tmp_path):
    small, large = Here(hosts(SMALL)), Here(hosts(SMALL))
    for transport, hidden in ((small, (8,)), (large, (2000,))):
        overrides = SMALL | {"model.hidden": hidden, "train.rounds": 1}
        run = run_at_sites(transport, Experiment.of(None, **overrides), tmp_path / str(hidden), len(SITES))
        parameters = run.events()[0]["parameters"]
        assert SMALL_REPLY + 8 * parameters < transport.longest < SMALL_REPLY + 64 * parameters
    assert large.longest < 1 << 25, "and not two gigabytes from anybody"


# ---- the stream ----------------------------------------------------------------------------------------------------


@pytest.fixture
def answering():
    """Return what acts as site bonn on a stream, as it likes, beside two honest ones."""
    pytest.importorskip("flwr")
    from streams import ECHO, PATIENCE, OwnFrames  # noqa: PLC0415

    from fedstrata.remote.flower.stream import open_stream  # noqa: PLC0415

    def answer(frames, **how):
        opened = open_stream(OwnFrames(ECHO, frames), "127.0.0.1:0", "run-1", patience=PATIENCE, **how)
        try:
            return opened.exchange(dict.fromkeys(ECHO, b"1"))  # without a deadline
        finally:
            opened.close()

    return answer


def test_a_site_that_closes_its_half_of_the_stream_is_not_waited_for(answering):
    assert answering([], grace=0.5) == {"aachen": b"1", "cologne": b"1"}


@pytest.mark.parametrize("kind", ["REPLY", "FAILURE"])
def test_a_parcel_that_says_to_be_longer_than_anything_needed_puts_its_site_out(answering, kind):
    from fedstrata.remote.flower.framing import HEAD, Kind  # noqa: PLC0415

    size = SMALL_REPLY + 1 if kind == "REPLY" else 4 * WORDS + 1
    replies = answering([HEAD.pack(Kind[kind], 1, size)], grace=0.5)
    assert f"a message of {size} bytes is too long" in replies.pop("bonn").reason
    assert replies == {"aachen": b"1", "cologne": b"1"}


@pytest.mark.parametrize("handshake", [False, True])
def test_strangers_who_connect_to_the_stream_and_stay_silent_are_shown_the_door(monkeypatch, handshake):
    pytest.importorskip("flwr")
    stream = pytest.importorskip("fedstrata.remote.flower.stream")
    from streams import ECHO, PATIENCE, streaming  # noqa: PLC0415

    soon = [(name, 300 if name.endswith("_ms") else value) for name, value in stream.STRANGERS]
    monkeypatch.setattr(stream, "STRANGERS", soon)
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    trust.set_alpn_protocols(["h2"])
    with streaming(ECHO) as (opened, _):
        host, _, port = opened.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as plain:
            line = trust.wrap_socket(plain) if handshake else plain
            with line, suppress(ConnectionError):
                while line.recv(4096):  # until the server closes it
                    pass
        assert opened.exchange(dict.fromkeys(ECHO, b"1"), PATIENCE) == dict.fromkeys(ECHO, b"1")


def test_a_reason_travels_whole_where_it_is_short():
    assert Failure("no data here").reason == "no data here"

"""Connections of the stream that break: made again, given up, and nothing is done twice."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress

import pytest

pytest.importorskip("flwr")
pytest.importorskip("grpc")

from streams import ECHO, PATIENCE, everybody, refused, streaming, wait_until

from benchmarks._ports import free_port
from fedstrata.remote.flower import stream


class Relay:
    """Stands between sites and server; it can cut every connection, and swallow what sites say."""

    def __init__(self):
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port, self.to, self._pairs, self.open = self._door.getsockname()[1], 0, [], True
        self.mute, self.swallowed = False, 0  # bytes
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
                if from_site and self.mute:
                    self.swallowed += len(data)
                else:
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


@contextmanager
def relayed(sites, **how):
    relay = Relay()
    relay.to = free_port()
    try:
        listen = f"127.0.0.1:{relay.to}"
        with streaming(sites, f"127.0.0.1:{relay.port}", listen=listen, **how) as (opened, messages):
            yield relay, opened, messages
            relay.open = True
    finally:
        relay.close()


def test_a_connection_that_breaks_is_made_again_and_nothing_is_done_twice():
    done, at_work, is_cut = [], threading.Semaphore(0), threading.Event()

    def works(request):
        at_work.release()
        if request == b"long":
            is_cut.wait(PATIENCE)
        done.append(request)
        return request

    with relayed(dict.fromkeys(ECHO, works)) as (relay, opened, messages):
        assert opened.exchange(everybody(b"1"), PATIENCE) == everybody(b"1")

        def cut():
            for _ in range(6):
                at_work.acquire()
            relay.cut()
            is_cut.set()

        threading.Thread(target=cut).start()
        assert opened.exchange(everybody(b"long"), PATIENCE) == everybody(b"long")
        relay.cut()  # between two exchanges
        assert opened.exchange(everybody(b"2"), PATIENCE) == everybody(b"2")
        assert sorted(done) == sorted(3 * [b"1", b"long", b"2"])
        assert opened.names() == sorted(ECHO)
        assert "the token was used before" in refused(messages.invitations["bonn"])  # also after a break


def test_an_answer_that_was_lost_on_its_way_is_sent_again():
    done, answer = [], bytes(60_000)
    with relayed({"bonn": lambda request: done.append(request) or answer}) as (relay, opened, _):
        relay.mute = True

        def cut():
            wait_until(lambda: relay.swallowed > len(answer) // 2)
            relay.mute = False
            relay.cut()

        threading.Thread(target=cut).start()
        assert opened.exchange({"bonn": b"1"}, PATIENCE) == {"bonn": answer}
        assert done == [b"1"]


def test_a_site_that_stays_away_is_given_up_and_gives_up():
    with relayed(ECHO, grace=1.0) as (relay, opened, messages):
        relay.open = False
        relay.cut()
        assert opened.exchange(everybody(b"1")) == {}
        assert opened.names() == []
        wait_until(lambda: len(messages.answers) == 3)
        assert all("cannot be reached" in answer.reason for answer in messages.answers.values())
        messages.sites = {}


def test_a_token_opens_the_stream_so_many_times(monkeypatch):
    monkeypatch.setattr(stream, "RETURNS", 1)
    with relayed(ECHO) as (relay, opened, messages):
        relay.cut()
        assert opened.exchange(everybody(b"1"), PATIENCE) == everybody(b"1")
        messages.sites = {}
        relay.cut()
        wait_until(lambda: len(messages.answers) == 3)
        assert opened.exchange(everybody(b"2"), 0.5) == {}
        assert all("the stream is over for this site" in answer.reason for answer in messages.answers.values())

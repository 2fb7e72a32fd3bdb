"""The stream on loopback, with TLS, to sites in this process."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import grpc
import pytest

from fedstrata.core.errors import FedstrataError
from fedstrata.remote.flower.framing import METHOD
from fedstrata.remote.flower.invitation import Invitation
from fedstrata.remote.flower.joining import with_stream
from fedstrata.remote.flower.stream import open_stream
from fedstrata.remote.flower.stream_site import StreamSite
from fedstrata.remote.transport import Failure

PATIENCE = 300.0  # seconds for what will come, on however busy a machine


def wait_until(true):
    """Wait for something that will be so."""
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


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


class OwnFrames(Loopback):
    """Site bonn connects by itself, and sends these frames when it is first asked something; the others are honest."""

    def __init__(self, sites, frames):
        super().__init__(sites)
        self._frames = frames

    def exchange(self, requests, deadline=None, enough=None):
        ((name, request),) = requests.items()
        if name != "bonn":
            return super().exchange(requests)
        bonn = self.invitations["bonn"] = Invitation.read(request)
        about = {"run": bonn.run, "site": bonn.site, "token": bonn.token, "secret": "s" * 64}
        asked = threading.Event()

        def speech():
            asked.wait(PATIENCE)
            yield from self._frames

        with grpc.secure_channel(bonn.address, grpc.ssl_channel_credentials(bonn.authority.encode())) as channel:
            call = channel.stream_stream(METHOD)(speech(), metadata=[(f"fedstrata-{k}", v) for k, v in about.items()])
            with suppress(grpc.RpcError):
                next(call)  # welcome
                next(call)  # a request
                asked.set()
                for _ in call:  # it listens, and says nothing more
                    pass
        return {name: b""}


@contextmanager
def streaming(sites, address="127.0.0.1:0", **how):
    before = threading.active_count()
    messages = Loopback(sites)
    opened = open_stream(messages, address, "run-1", **({"patience": PATIENCE, "grace": PATIENCE} | how))
    try:
        yield opened, messages
    finally:
        opened.close()
    wait_until(lambda: threading.active_count() <= before)


ECHO = {"aachen": bytes, "bonn": bytes, "cologne": bytes}


def everybody(data):
    return dict.fromkeys(ECHO, data)


def refused(invitation, **wrong):
    with pytest.raises(FedstrataError) as raised:
        StreamSite(replace(invitation, **wrong), bytes).run()
    return str(raised.value)

"""The parties of label masking, with messages that a test may read, change and forge."""

from __future__ import annotations

import hmac
from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedstrata.core.rng import Streams
from fedstrata.privacy.agreement import Agreement, derive, transcript_of
from fedstrata.privacy.frames import SERVER, Frame, RefusedError, join, open_frame
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.privacy.labels import prf
from fedstrata.privacy.labels.masking import mask_labels
from fedstrata.privacy.labels.parties import name_reply, name_request
from fedstrata.privacy.labels.prf import PrfClient, PrfServer
from fedstrata.privacy.simulated import secrets

HELD = [{"cat": 5, "dog": 7}, {"dog": 11, "hen": 13}, {"cat": 17, "hen": 19, "pig": 23}, {"pig": 29}, {"cat": 31}]
REFUSED = partial(pytest.raises, RefusedError)


def mask(mode, held, seed=0, **more):
    """Mask labels with secrets that come from a seed."""
    return mask_labels(
        mode,
        held,
        rng=np.random.default_rng(seed),
        entropy=lambda party: secrets(Streams(seed), "labels", party),
        **more,
    )


def check(known, held):
    """Say that what the parties know is true of what the clients that took part hold."""
    assert sorted(known.clients + known.left_out) == list(range(len(held)))
    placeholder, totals = {}, Counter()
    for client, labels in enumerate(held):
        there = client in known.clients
        assert known.own[client].keys() == (labels.keys() if there else set())
        for label, at in known.own[client].items():
            assert placeholder.setdefault((type(label), label), at) == at
            totals[at] += labels[label]
        assert set(np.flatnonzero(known.holds[client])) == set(known.own[client].values())
    assert sorted(placeholder.values()) == list(range(known.placeholders))
    assert known.totals.dtype == np.int64
    assert known.totals.tolist() == [totals[at] for at in range(known.placeholders)]


def noting(source, drawn):
    """Draw secret bytes, and note them: what a party draws is all that it knows and nobody else."""

    def draw(size):
        drawn.append(source(size))
        return drawn[-1]

    return draw


@dataclass(frozen=True)
class Secrets:
    """What a client knows of a prf job, worked out anew from what it drew."""

    contribution: bytes
    group: bytes
    transcript: bytes
    masks: dict[int, bytes]  # by the client they are shared with
    wraps: dict[int, bytes]

    def token(self, code):
        """Return the token of an encoded label."""
        return self.mac(b"token", code)[: prf.TOKEN]

    def mac(self, *parts):
        return hmac.digest(self.group, join([prf.DOMAIN.encode(), self.transcript, *parts]), "sha256")

    def stream_key(self, other):
        """Return what the words are drawn from that mask counts between this client and another."""
        return derive(self.masks[other], self.transcript, b"label counts")


class PrfWorld:
    """The parties of prf jobs; `drawn` has the secret bytes of each client: its identity, then two of each job."""

    def __init__(self, held, seed=0, **more):
        self.seed, self.drawn = seed, [[] for _ in held]
        sources = [noting(secrets(Streams(seed), "labels", i), drawn) for i, drawn in enumerate(self.drawn)]
        self.identities = [Identity.new(source) for source in sources]
        self.source = secrets(Streams(seed), "labels", SERVER)
        self.identity = Identity.new(self.source)
        self.key_directory = KeyDirectory.of(self.identity, self.identities)
        self.clients = [
            PrfClient(i, identity, self.key_directory, held[i], source, **more)
            for i, (identity, source) in enumerate(zip(self.identities, sources, strict=True))
        ]

    def server(self, members=None, distributions=False):
        """Begin a job."""
        who = range(len(self.clients)) if members is None else members
        rng = np.random.default_rng(self.seed)
        return PrfServer(self.identity, self.key_directory, who, self.source, rng, distributions=distributions)

    def secrets(self, server, client):
        """Return what a client knows of the last job, in which all took part and sent their contributions."""
        halves = {i: Agreement(i, X25519PrivateKey.from_private_bytes(own[-2])) for i, own in enumerate(self.drawn)}
        keys = {i: half.public for i, half in halves.items()}
        tr = transcript_of(prf.DOMAIN.encode() + self.key_directory.digest, server.job, keys)
        pairs = {i: halves[client].pair(i, key, tr) for i, key in keys.items() if i != client}
        group = derive(join([own[-1] for own in self.drawn]), tr, b"group key")
        masks, wraps = ({i: getattr(pair, of) for i, pair in pairs.items()} for of in ("mask", "wrap"))
        return Secrets(self.drawn[client][-1], group, tr, masks, wraps)

    def talk(self, server, **how):
        """Carry messages of a job; see `talk`."""
        return talk(server, self.clients, **how)

    def lie(self, server, step, client, *fields, number=None):
        """Write what a server says that does not keep to the protocol."""
        kind = name_request(prf.DOMAIN, step, number_of(server, step) if number is None else number, client)
        return Frame(kind, server.job, SERVER, fields).sign(self.identity)

    def said(self, server, step, client, data):
        """Read the fields of one of the server's messages."""
        kind = name_request(prf.DOMAIN, step, number_of(server, step), client)
        return open_frame(data, self.key_directory, kind, server.job, SERVER).fields

    def told(self, server, step, client, data):
        """Read the fields of one of a client's messages."""
        kind = name_reply(prf.DOMAIN, step, number_of(server, step))
        return open_frame(data, self.key_directory, kind, server.job, client).fields

    def tell(self, server, step, client, *fields):
        """Write what a client says that does not keep to the protocol."""
        kind = name_reply(prf.DOMAIN, step, number_of(server, step))
        return Frame(kind, server.job, client, fields).sign(self.identities[client])


def number_of(server, step):
    """Count the messages before a step."""
    return prf.STEPS.index(step) - (step == "counts" and server.counts is None)


def talk(server, clients, until=None, meddle=None, change=None, reword=None):
    """Carry messages until a step.

    `meddle` sees each one and its receiver before it arrives; `change` replaces what is asked, and `reword` what is
    replied.
    """
    while (asks := server.asks()) and server.step != until:
        step = server.step
        for i, told in asks.items():
            ask = told if change is None else change(step, i, told)
            if meddle is not None:
                meddle(ask, partial(clients[i].answer, step))
            reply = clients[i].answer(step, ask)
            if reword is not None:
                reply = reword(step, i, reply)
            if meddle is not None:
                meddle(reply, partial(server.take, i))
            server.take(i, reply)
    return server

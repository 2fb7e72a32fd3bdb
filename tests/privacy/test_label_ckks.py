"""The printed protocol with homomorphic encryption: what it is worth, and what it refuses."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import tenseal
from label_parties import HELD, REFUSED, mask, talk
from reaching import reachable

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.privacy.frames import JOB, MAGIC, SERVER, Frame, split
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.privacy.labels import ckks_paper
from fedstrata.privacy.labels.parties import WORD, name_request
from fedstrata.privacy.simulated import secrets


@pytest.fixture(scope="module")
def keys():
    return ckks_paper.Keys.new()


OPENED = ("unique", "map", "sums")  # the steps in which a client decrypts what it is asked


class GroundTruth:
    """The parties of a job, and what a test needs to forge messages and to read them as a client does."""

    def __init__(self, held, keys):
        sources = [secrets(Streams(0), "labels", party) for party in range(-1, len(held))]
        self.identity, *self.identities = [Identity.new(source) for source in sources]
        key_directory = KeyDirectory.of(self.identity, self.identities)
        self.clients = [
            ckks_paper.CkksClient(i, self.identities[i], key_directory, held[i], sources[i + 1], keys.secret)
            for i in range(len(held))
        ]
        rng = np.random.default_rng(0)
        self.server = ckks_paper.CkksServer(
            self.identity, key_directory, range(len(held)), sources[0], rng, public=keys.public
        )
        self.context, self.asks = tenseal.context_from(keys.secret), []

    def talk(self, change=lambda step, i, ask: ask, **how):
        """Carry messages; what was asked is noted: the step, the client, the fields."""

        def noting(step, i, ask):
            told = change(step, i, ask)
            self.asks.append((step, i, contents(told)[1]))
            return told

        return talk(self.server, self.clients, change=noting, **how)

    def numbers(self, ciphertexts):
        """Decrypt as a client can: with the noise."""
        return [tenseal.ckks_vector_from(self.context, data).decrypt()[0] for data in ciphertexts]

    def forge(self, kind, *fields):
        """Write a message of the server."""
        return Frame(kind, self.server.job, SERVER, fields).sign(self.identity)


def contents(data):
    """Read the kind and the fields of a message, whatever it is."""
    begin = len(MAGIC) + 4
    end = begin + int.from_bytes(data[begin - 4 : begin], "little")
    return data[begin:end].decode(), split(data[end + JOB + 4 : -64])


def test_the_printed_protocol_says_what_it_is_worth():
    with pytest.warns(ckks_paper.PrivacyWarning, match="oracle") as caught:
        known = mask("ckks-paper", [{1: 1}] * 3)
    assert len(caught) == 1
    assert known.warning == ckks_paper.WARNING
    assert mask("prf", HELD).warning is None


def test_what_is_decrypted_leaves_a_client_rounded(keys):
    """Raw doubles carry the noise of a ciphertext, and give the key to whoever gets them."""
    world, answers = GroundTruth([{1: 10**9 + 7}, {1: 3}, {2: 5}], keys), []

    def look(step, i, reply):
        if step == "sums":
            answers.append(reply)
        return reply

    server = world.talk(reword=look)
    raw = [number for step, i, fields in world.asks if i == 0 and step in OPENED for number in world.numbers(fields)]
    sums = [number for number in raw if number > 2]
    assert sorted(server.totals.tolist()) == [5, 10**9 + 10]
    assert any(number != round(number) for number in sums)  # there is noise, and ...
    assert not [n for n in raw if n != round(n) and struct.pack("<d", n) in answers[0]]  # ... it does not travel
    assert np.array(server.totals, dtype=WORD).tobytes() in answers[0]


def test_the_printed_protocol_has_a_decryption_oracle(keys):
    """A server submits one client's count as "the sum", and is told it. (With prf there is nothing to submit.)"""
    world, submitted = GroundTruth([{1: 10}, {1: 20}, {1: 30}], keys), {}

    def steal(step, i, ask):
        return ask if step != "sums" else world.forge(contents(ask)[0], submitted["count"])

    def listen(step, i, reply):
        if step == "labels":
            submitted["count"] = contents(reply)[1][1]  # the last one stays: that of client 2
        return reply

    assert world.talk(change=steal, reword=listen).totals.tolist() == [30]


def test_a_client_of_the_printed_protocol_reads_the_labels_of_others(keys):
    world = GroundTruth([{11: 1, 12: 1}, {40: 1}, {41: 1}], keys)
    world.talk(until="map")
    read = [number for step, i, fields in world.asks if (step, i) == ("unique", 1) for number in world.numbers(fields)]
    assert {40 - round(difference) for difference in read} == {11, 12}


def test_a_ciphertext_less_itself_is_zero_without_asking(keys):
    world = GroundTruth([{5: 1}, {5: 1}, {3: 1}], keys)
    world.talk()
    asked_of = [[fields for step, i, fields in world.asks if i == client and step == "map"] for client in range(3)]
    assert list(map(len, asked_of)) == [0, 1, 1]  # a label's own entry in the list is met without a question
    assert world.numbers(asked_of[1][0]) == pytest.approx([0], abs=1e-3)  # another client's 5, which is not the same
    assert world.numbers(asked_of[2][0]) == pytest.approx([-2], abs=1e-3)

    world, told = GroundTruth([{5: 1}, {6: 1}, {3: 1}], keys), {}

    def copy(step, i, reply):
        kind, told[i] = contents(reply)
        if step != "labels" or i != 1:
            return reply
        return Frame(kind, world.server.job, 1, (told[0][0], told[1][1])).sign(world.identities[1])

    world.talk(reword=copy, until="placeholders")
    assert not [step for step, i, _ in world.asks if i == 1 and step in ("unique", "map")]


def test_ciphertexts_that_are_none_and_sizes_that_are_wrong_are_refused(keys):
    world = GroundTruth([{1: 1}, {2: 1}, {3: 1}], keys)
    server = world.talk(until="unique")
    two = tenseal.ckks_vector(world.context, [1.0, 2.0]).serialize()
    for client, (data, said) in enumerate([(b"nonsense", "no ciphertext"), (two, "2 numbers")]):
        with REFUSED(match=said):
            world.clients[client].answer(
                "unique", world.forge(name_request(ckks_paper.DOMAIN, "unique", 1, client), data)
            )
    found = list(reachable(server).values())
    assert [x.has_secret_key() for x in found if isinstance(x, tenseal.Context)] == [False]
    assert not [x for x in found if isinstance(x, ckks_paper.CkksClient)]


def test_printed_protocol_tampered_replayed_and_overflowing(keys):
    world, rng = GroundTruth([{1: 1, 2: 2}, {2: 1}, {1: 5}], keys), np.random.default_rng(0)

    def meddle(data, deliver):
        changed = bytearray(data)
        bit = int(rng.integers(8 * len(data)))
        changed[bit // 8] ^= 1 << bit % 8
        for bad in (bytes(changed), data[:-1], b""):
            with REFUSED():
                deliver(bad)

    assert sorted(world.talk(meddle=meddle).totals.tolist()) == [3, 6]
    wrapping = GroundTruth([{1: 2**40 // 3}, {2: 1}, {1: 5}], keys).clients[0]
    with pytest.raises(RequestError, match="wrap"):
        wrapping.answer("labels", GroundTruth([{1: 1}] * 3, keys).server.asks()[0])


def test_without_tenseal_the_request_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ckks_paper, "import_module", _missing)
    with pytest.raises(RequestError, match=r"pip install \"fedstrata\[he\]\""):
        mask("ckks-paper", HELD)


def _missing(name):
    raise ImportError(name)

"""The channel to an enclave: parties tell nothing before they have verified, and nobody reads or changes it."""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import sha512

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from enclave_parties import flipped, parties_of, seeded

from fedstrata.privacy.enclave import channel as channels
from fedstrata.privacy.enclave import dev_insecure
from fedstrata.privacy.enclave.attestation import Policy
from fedstrata.privacy.enclave.channel import Channel, Desk, Party, Sealing
from fedstrata.privacy.enclave.dev_insecure import DevInsecure
from fedstrata.privacy.enclave.service import Service
from fedstrata.privacy.frames import RefusedError, join, split
from fedstrata.privacy.identity import Identity


def channel_of(message=b"a secret"):
    """Return a service's desk and what one party sends it, in order."""
    job, parties, _ = parties_of(np.ones((3, 2), dtype=int))
    desk = Desk(job, dev_insecure.attest, seeded(9))
    offer, _ = desk.take(0, parties[0].hello())
    return desk, parties[0], list(parties[0].submit(offer, message))


@pytest.mark.parametrize("size", [0, 1, 40, 41, 95])
def test_a_message_arrives(size, monkeypatch):
    monkeypatch.setattr(channels, "RECORD", 40)
    message = os.urandom(size)
    desk, party, sent = channel_of(message)
    assert len(sent) == 1 + max(1, -(-size // 40))
    answers = [desk.take(0, data) for data in sent]
    assert [m for _, m in answers] == [None] * (len(sent) - 1) + [message]
    party.confirm(answers[-1][0])


def test_the_report_data_bind_nonce_and_key():
    job = parties_of(np.ones((3, 2), dtype=int))[0]
    nonce, key = os.urandom(32), os.urandom(32)
    head = [channels.DOMAIN, job.id, job.key_directory.digest, channels.sha256(job.terms).digest(), b"1", nonce, key]
    assert job.report_data(1, nonce, key) == sha512(join(head)).digest()
    others = [job.report_data(0, nonce, key), job.report_data(1, key, nonce)]
    others += [replace(job, **{name: b"x" * 16}).report_data(1, nonce, key) for name in ("id", "terms")]
    assert job.report_data(1, nonce, key) not in others


class Watched:
    """A verifier that remembers whether it was asked, and says no."""

    kind = "dev-insecure"
    asked = 0

    def verify(self, evidence, report_data, policy):
        self.asked += 1
        raise RefusedError("no")


def test_parties_tell_nothing_before_they_have_verified():
    verifier = Watched()
    job, parties, _ = parties_of(np.ones((3, 2), dtype=int), verifier)
    desk = Desk(job, dev_insecure.attest, seeded(9))
    hello = parties[0].hello()
    offer, _ = desk.take(0, hello)
    sent = []
    with pytest.raises(RefusedError, match="no"):
        sent.extend(parties[0].submit(offer, b"a secret"))
    assert verifier.asked == 1
    assert not sent
    assert b"a secret" not in hello


def test_an_offer_for_another_key_party_nonce_job_or_terms_is_refused():
    job, parties, _ = parties_of(np.ones((3, 2), dtype=int))
    desk, attacker = Desk(job, dev_insecure.attest, seeded(9)), seeded(10)
    offers = [desk.take(i, parties[i].hello())[0] for i in range(2)]
    key, kind, data = split(offers[0])
    elsewhere = Desk(replace(job, terms=job.terms + b" "), dev_insecure.attest, seeded(9))
    bad = [
        join([attacker(32), kind, data]),  # the server's own key under the service's evidence
        offers[1],  # another party's
        join([key, b"sev-snp", data]),
        join([key, kind]),
        offers[0][:-1],
        b"",
    ]
    for offer in bad:
        with pytest.raises(RefusedError):
            parties[0].submit(offer, b"a secret")
    again = parties_of(np.ones((3, 2), dtype=int))[1][0]
    offer, _ = elsewhere.take(0, again.hello())
    with pytest.raises(RefusedError, match="another key"):
        again.submit(offer, b"a secret")
    fresh = Party(0, job, Identity.new(seeded(0)), DevInsecure(True), Policy(dev_insecure.measured()), seeded(77))
    fresh.hello()
    with pytest.raises(RefusedError, match="another key"):  # the offer was made for an older nonce
        fresh.submit(offers[0], b"a secret")
    assert len(list(parties[0].submit(offers[0], b"a secret"))) == 2


def test_a_changed_bit_in_any_message_is_refused_and_the_true_one_still_arrives():
    job, parties, _ = parties_of(np.ones((3, 2), dtype=int))
    desk = Desk(job, dev_insecure.attest, seeded(9))

    def refused(data):
        for bit in range(0, len(data) * 8, 3):
            with pytest.raises(RefusedError):
                desk.take(0, flipped(data, bit))

    hello = parties[0].hello()
    refused(hello)
    offer, _ = desk.take(0, hello)
    message = None
    for data in parties[0].submit(offer, b"a secret"):
        refused(data)
        receipt, message = desk.take(0, data)
    assert message == b"a secret"
    for bit in range(len(receipt) * 8):
        with pytest.raises(RefusedError):
            parties[0].confirm(flipped(receipt, bit))
    parties[0].confirm(receipt)


def test_repeated_reordered_dropped_and_shortened_records_are_refused(monkeypatch):
    monkeypatch.setattr(channels, "RECORD", 10)
    desk, party, (key, *records) = channel_of(b"a secret of some length, in four")
    assert len(records) == 4
    with pytest.raises(RefusedError):  # before the key
        desk.take(0, records[0])
    desk.take(0, key)
    for wrong in (key, records[1], records[3], records[0][:-1], records[0] + b"\0", records[0][:9], b""):
        with pytest.raises(RefusedError):
            desk.take(0, wrong)
    assert desk.take(0, records[0]) == (b"", None)
    with pytest.raises(RefusedError, match="repeated"):
        desk.take(0, records[0])
    with pytest.raises(RefusedError, match="left out"):
        desk.take(0, records[2])
    ended = records[1][:8] + b"\1" + records[1][9:]  # as if the message ended here
    with pytest.raises(RefusedError):
        desk.take(0, ended)
    receipts = [desk.take(0, record) for record in records[1:]]
    assert receipts[-1][1] == b"a secret of some length, in four"
    with pytest.raises(RefusedError):  # a party's message comes once
        desk.take(0, records[-1])
    with pytest.raises(RefusedError):  # and what goes one way does not come back
        party.confirm(records[0])


def test_nobody_speaks_for_another_party():
    job, parties, _ = parties_of(np.ones((3, 2), dtype=int))
    desk = Desk(job, dev_insecure.attest, seeded(9))
    hello = parties[0].hello()
    with pytest.raises(RefusedError, match="sender"):
        desk.take(1, hello)
    thief = Party(1, job, Identity.new(seeded(50)), DevInsecure(True), Policy(dev_insecure.measured()), seeded(51))
    with pytest.raises(RefusedError, match="not signed"):
        desk.take(1, thief.hello())
    server = Party(-1, job, Identity.new(seeded(-1)), DevInsecure(True), Policy(dev_insecure.measured()), seeded(52))
    for number, words in ((-1, server.hello()), (4, hello)):
        with pytest.raises(RefusedError, match="none of those"):
            Service(job, dev_insecure.attest).relay(number, words)
    desk.take(0, hello)
    with pytest.raises(RefusedError):
        desk.take(0, hello)  # replayed


def test_both_directions_have_their_own_keys():
    private, other = (X25519PrivateKey.from_private_bytes(seeded(i)(32)) for i in range(2))
    own, its = (key.public_key().public_bytes_raw() for key in (private, other))
    keys, same = Channel.of(private, its, b"data", own, its), Channel.of(other, own, b"data", own, its)
    assert keys == same  # at both ends
    assert keys.to_service.key != keys.to_party.key
    (record,) = Sealing(keys.to_party.key).seal(b"x")
    with pytest.raises(RefusedError):
        Sealing(keys.to_service.key).open(record)

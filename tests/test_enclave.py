"""FLIPS in an enclave: whom parties believe, what they tell and when, what the server sees of it, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha512
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedstrata import Federation, RequestError
from fedstrata.core import tree
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.errors import FedstrataError
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Report
from fedstrata.core.rng import Streams
from fedstrata.core.server_parts import Ask, Outcome, Scores, Step, View
from fedstrata.data.drift import Drift
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy.enclave import channel as channels
from fedstrata.privacy.enclave import der, dev_insecure, sev_snp
from fedstrata.privacy.enclave import launch as starting
from fedstrata.privacy.enclave.attestation import Evidence, Policy, Tcb
from fedstrata.privacy.enclave.channel import Channel, Desk, Job, Party, Sealing
from fedstrata.privacy.enclave.dev_insecure import DevInsecure, InsecureWarning
from fedstrata.privacy.enclave.launch import Enclave, Setting, start, tell
from fedstrata.privacy.enclave.policy import Scoring, Terms
from fedstrata.privacy.enclave.requests import Request
from fedstrata.privacy.enclave.selector import EnclaveAnswers, InEnclave
from fedstrata.privacy.enclave.service import SECRET, Service, distribution
from fedstrata.privacy.enclave.sev_snp import SevSnp
from fedstrata.privacy.frames import RefusedError, join, split
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.runs.training import describe_experiment
from fedstrata.testing import tiny_federation
from fedstrata.testing.tiny import session_of

PACKS = Path(os.environ.get("FEDSTRATA_PACKS", Path(__file__).parents[2] / "shared" / "data"))
SNP = PACKS / "snp"
samples = pytest.mark.skipif(not SNP.is_dir(), reason=f"no attestation samples at {SNP}; see FEDSTRATA_PACKS")
THEN = datetime(2026, 1, 1, tzinfo=UTC)  # the samples' certificates are valid until 2029 and 2030
SNP_VERIFIER = SevSnp(now=lambda: THEN)
OPEN = Setting("dev-insecure", allow_insecure=True)


# ---- SEV-SNP reports -------------------------------------------------------------------------------------------------


def milan():
    """Return a real report and its certificates."""
    report = bytes.fromhex((SNP / "report_milan.hex").read_text().strip())
    pems = [(SNP / f"{name}.milan.pem").read_text() for name in ("ask", "ark")]
    return report, (SNP / "vcek_milan.der").read_bytes(), *map(ssl.PEM_cert_to_DER_cert, pems)


def debugged():
    """Return another, whose guest may be debugged."""
    end = "-----END CERTIFICATE-----\n"
    ask, ark = (ssl.PEM_cert_to_DER_cert(pem + end) for pem in (SNP / "g_milan.testcer").read_text().split(end)[:2])
    return (SNP / "g_attestation.bin").read_bytes(), (SNP / "g_vcek.testcer").read_bytes(), ask, ark


def said(report):
    """Return report data and a policy that are just what a report says of itself."""
    read = sev_snp.Report(report)
    return read.report_data, Policy(read.measurement, debug=True, vmpl=read.vmpl)


def verify(parts, report_data=None, **changed):
    told, policy = said(parts[0])
    evidence = sev_snp.evidence_of(*parts)
    SNP_VERIFIER.verify(evidence, told if report_data is None else report_data, replace(policy, **changed))


def flipped(data, bit):
    out = bytearray(data)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


@samples
@pytest.mark.parametrize("parts", [milan, debugged])
def test_real_reports_are_believed(parts):
    verify(parts())


@samples
def test_what_is_read_of_a_report():
    read = sev_snp.Report(milan()[0])
    assert read.policy == 0x30000
    assert read.tcbs["reported"] == Tcb(boot_loader=3, tee=0, snp=8, microcode=0x73)
    assert set(read.tcbs.values()) == {Tcb(3, 0, 8, 0x73)}
    assert read.measurement.hex().startswith("7a1e5c266c0108db")


@samples
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_no_report_with_a_changed_bit_is_believed(step):
    """The policy asks for just what the changed report says: only signature and chain are left to refuse it."""
    report, *certificates = milan()
    for bit in range(0, len(report) * 8, step):
        with pytest.raises(RefusedError):
            verify([flipped(report, bit), *certificates])


@samples
@pytest.mark.parametrize("which", [1, 2, 3])
@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_no_certificate_with_a_changed_bit_is_believed(which, step):
    """Also not one that is changed where no signature reaches: tags, lengths, the second name of the algorithm."""
    parts = list(milan())
    at = parts[which].index(der.PSS_SHA384, 100) * 8  # the second name of the algorithm, and the signature's head
    for bit in sorted({*range(0, 160), *range(at, at + 640), *range(0, len(parts[which]) * 8, step)}):
        changed = [*parts[:which], flipped(parts[which], bit), *parts[which + 1 :]]
        with pytest.raises(RefusedError):
            verify(changed)


@samples
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"measurement": bytes(48)}, "other code"),
        ({"vmpl": 1}, "VMPL"),
        ({"report_data": bytes(64)}, "another key"),
        ({"minimum": Tcb(4, 0, 0, 0)}, "below"),
        ({"minimum": Tcb(3, 0, 9, 0)}, "below"),
        ({"minimum": Tcb(0, 0, 0, 0x74)}, "below"),
        ({"chips": frozenset({bytes(64)})}, "not one of those"),
    ],
)
def test_a_report_that_does_not_keep_the_policy_is_refused(change, why):
    with pytest.raises(RefusedError, match=why):
        verify(milan(), **change)


@samples
@pytest.mark.parametrize(
    ("at", "byte", "why"),
    [
        (0x180, 4, "different security versions"),
        (0x182, 1, "different security versions"),
        (0x187, 0x72, "different security versions"),
        (0x1A0, 0, "different chips"),
        (0x00, 1, "version 1"),
        (0x00, 6, "version 6"),
        (0x0A, 0x01, "malformed"),
        (0x0A, 0x07, "move"),
        (0x1F0, 2, "launch"),
        (0x1E0, 2, "committed"),
        (0x38, 2, "current"),
    ],
)
def test_what_a_signed_report_may_not_say(at, byte, why, monkeypatch):
    """No chip signs these here, so the signature is left out for once."""
    monkeypatch.setattr(sev_snp, "_signed", lambda *_: None)
    report, *certificates = milan()
    changed = report[:at] + bytes([byte]) + report[at + 1 :]
    with pytest.raises(RefusedError, match=why):
        verify([changed, *certificates], minimum=Tcb(3, 0, 8, 0x73))


@samples
def test_a_policy_that_is_just_kept_is_kept():
    parts = milan()
    verify(parts, minimum=Tcb(3, 0, 8, 0x73), chips=frozenset({sev_snp.Report(parts[0]).chip}), debug=False)


@samples
def test_a_guest_that_may_be_debugged_is_refused():
    with pytest.raises(RefusedError, match="debug"):
        verify(debugged(), debug=False)


@samples
def test_a_report_of_another_chip_and_evidence_of_another_shape_are_refused():
    one, other = milan(), debugged()
    with pytest.raises(RefusedError, match="not signed by this chip"):
        verify([one[0], other[1], *one[2:]])
    for data, why in ((one[0][:-1], "1184"), (one[0] + b"\0", "1184"), (b"", "1184")):
        with pytest.raises(RefusedError, match=why):
            SNP_VERIFIER.verify(sev_snp.evidence_of(data, *one[1:]), *said(one[0]))
    for evidence in (Evidence("sev-snp", b""), Evidence("dev-insecure", sev_snp.evidence_of(*one).data)):
        with pytest.raises(RefusedError):
            SNP_VERIFIER.verify(evidence, *said(one[0]))


@samples
def test_a_chain_is_only_as_good_as_its_dates_and_its_root():
    parts = milan()
    for year, why in ((2031, "valid from"), (2019, "valid from")):
        with pytest.raises(RefusedError, match=why):
            SevSnp(now=lambda year=year: datetime(year, 1, 1, tzinfo=UTC)).verify(
                sev_snp.evidence_of(*parts), *said(parts[0])
            )
    with pytest.raises(RefusedError, match="root"):  # the ASK signs the VCEK all right, but is not known here
        verify([*parts[:3], parts[2]])


def test_object_identifiers_are_encoded():
    assert der.identifier("1.2.840.113549.1.1.10").hex() == "2a864886f70d01010a"
    assert der.identifier("1.3.6.1.4.1.3704.1.3.1").hex() == "2b060104019c78010301"


@pytest.mark.skipif(sev_snp.DEVICE.exists(), reason="this is a SEV-SNP guest")
def test_without_the_hardware_it_says_so(tmp_path):
    with pytest.raises(RequestError, match="SEV-SNP guest"):
        sev_snp.from_hardware(bytes(64))
    with pytest.raises(RequestError, match="SEV-SNP guest"):
        sev_snp.attester(tmp_path)


# ---- software attestation --------------------------------------------------------------------------------------------


def test_software_attestation_is_refused_unless_it_is_allowed():
    evidence, policy = dev_insecure.attest(bytes(64)), Policy(dev_insecure.measured())
    with pytest.raises(RefusedError, match="no secrecy"):
        DevInsecure().verify(evidence, bytes(64), policy)
    with pytest.raises(RequestError, match="allow_insecure"):
        start(Flips(), tiny_federation(), Streams(0), Setting("dev-insecure"), 9)
    DevInsecure(True).verify(evidence, bytes(64), policy)


def test_software_attestation_is_loud(caplog):
    events = []
    with pytest.warns(InsecureWarning, match="NO secrecy"):
        dev_insecure.permit(True, lambda kind, **what: events.append((kind, what["used"])))
    assert events == [("insecure", "dev-insecure")]
    assert "NO secrecy against the host" in caplog.text


def test_no_software_evidence_with_a_changed_bit_is_believed():
    evidence, policy = dev_insecure.attest(bytes(64)), Policy(dev_insecure.measured())
    for bit in range(len(evidence.data) * 8):
        with pytest.raises(RefusedError):
            DevInsecure(True).verify(replace(evidence, data=flipped(evidence.data, bit)), bytes(64), policy)
    with pytest.raises(RefusedError, match="other code"):
        DevInsecure(True).verify(evidence, bytes(64), Policy(bytes(48)))


# ---- the channel -----------------------------------------------------------------------------------------------------


def seeded(party, seed=0):
    return Streams(seed)("test", client=party).bytes


def parties_of(counts, verifier=None, seed=0, **terms):
    """Return a job, and a party for every client and for the owner of a test set."""
    counts = np.asarray(counts)
    draws = [seeded(i, seed) for i in range(len(counts) + 1)]
    identities = [Identity.new(draw) for draw in draws]
    key_directory = KeyDirectory.of(Identity.new(seeded(-1)), identities)
    job = Job(bytes(16), key_directory, Terms(*counts.shape, 100, 0, **terms).written())
    secrets = [draw(SECRET) for draw in draws]
    believes, policy = verifier or DevInsecure(True), Policy(dev_insecure.measured())
    parties = [Party(i, job, identities[i], believes, policy, draws[i]) for i in range(len(draws))]
    return job, parties, secrets


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
    _, party, _ = channel_of()
    keys = party._channel
    assert isinstance(keys, Channel)
    assert keys.to_service.key != keys.to_party.key
    (record,) = Sealing(keys.to_party.key).seal(b"x")
    with pytest.raises(RefusedError):
        Sealing(keys.to_service.key).open(record)


# ---- selecting -------------------------------------------------------------------------------------------------------


class Direct:
    """The service without its process."""

    def __init__(self, service):
        self.service, self.relay, self.asked = service, service.relay, []

    def ask(self, request):
        ids = self.service.ask(request.written())
        self.asked.append(request)
        return ids


def told(counts, who=None, seed=0, **terms):
    """Return a service to which clients told their counts."""
    job, parties, secrets = parties_of(counts, seed=seed, **terms)
    enclave = Direct(Service(job, dev_insecure.attest))
    for i in range(len(counts)) if who is None else who:
        if counts[i].any():
            tell(enclave.relay, parties[i], distribution(counts[i], secrets[i]))
    return enclave


def dirichlet(clients=60, classes=8, seed=1):
    rng = np.random.default_rng(seed)
    counts = np.array([rng.multinomial(50, mix) for mix in rng.dirichlet(np.full(classes, 0.3), clients)])
    counts[[5, 17]] = 0  # two have no data
    return counts


def views(counts, rounds, k=10):
    """Return what the server sees: not the counts. From round to round a fifth of the clients is away."""
    holders, streams = np.flatnonzero(counts.sum(1)), Streams(0)
    key = streams("tiebreak").permutation(len(counts))
    rng = np.random.default_rng(3)
    for round in range(rounds):
        here = holders if round % 3 == 0 else np.sort(rng.choice(holders, len(holders) * 4 // 5, replace=False))
        for known in ({"counts": counts}, {}):
            client_info = ClientInfo(*counts.shape, holders, key, known)
            yield View(round, rounds, k, here, client_info, None, partial(streams, round=round), lambda *_, **__: None)


def played(selector, state, counts, rounds, open_run, cut=None, fresh=None, k=10):
    """Let a selector choose with a fifth of the reports missing; with `cut`, from a saved state and a fresh service."""
    rng, ids = np.random.default_rng(4), []
    seen = list(views(counts, rounds, k))[0 if open_run else 1 :: 2]
    for round, view in enumerate(seen):
        if round == cut:
            arrays = {}
            saved = json.loads(json.dumps(tree.flatten(state, arrays)))
            selector, state = fresh, tree.restore(saved, arrays, EnclaveAnswers())
        chosen = sorted(selector.select(state, view))
        missing = sorted(rng.choice(chosen, len(chosen) // 5, replace=False).tolist())
        reports = tuple(Report(i, 1, 1, 1.0, 1.0) for i in chosen if i not in missing)
        outcomes = [Outcome(Step(tuple(map(Ask, chosen))), 0, reports, tuple(missing))]
        outcomes.append(Outcome(Step(tuple(map(Ask, chosen)), combine=False), 1, (), tuple(chosen)))  # a probe
        selector.feedback(state, view, outcomes, Scores())
        ids.append(chosen)
    return ids


@pytest.mark.parametrize("flips", [Flips(clusters=6), Flips(repeats=3, rate="reset", features="counts")])
def test_the_enclave_selects_as_flips_does_in_the_open_and_after_a_restart(flips):
    counts = dirichlet()
    opened = played(flips, flips.init(next(views(counts, 1))), counts, 30, open_run=True)
    inside = InEnclave(told(counts, flips=flips))
    assert inside.needs == frozenset()
    assert played(inside, EnclaveAnswers(), counts, 30, open_run=False) == opened
    fresh = InEnclave(told(counts, flips=flips, seed=8))
    halfway = InEnclave(told(counts, flips=flips))
    assert played(halfway, EnclaveAnswers(), counts, 30, open_run=False, cut=13, fresh=fresh) == opened
    assert len({len(ids) for ids in opened}) > 1  # where reports are missing, more are asked


def test_a_service_serves_one_run():
    counts = dirichlet()
    selector = InEnclave(told(counts, flips=Flips(clusters=6)))
    played(selector, EnclaveAnswers(), counts, 3, open_run=False)
    with pytest.raises(FedstrataError, match="another run"):
        played(selector, EnclaveAnswers(), counts, 3, open_run=False)


def test_every_round_is_asked_about_once():
    enclave = told(dirichlet(), flips=Flips(clusters=6))
    enclave.ask(Request("select", 4, 2))
    for round in (4, 3, 0, -1, 100):
        with pytest.raises(RefusedError, match="once"):
            enclave.ask(Request("select", round, 2, [np.array([1, 2])]))
    enclave.ask(Request("feedback", 4, 2))
    with pytest.raises(RefusedError, match="once"):
        enclave.ask(Request("feedback", 4, 2, [np.array([1]), np.array([2])]))
    with pytest.raises(RefusedError, match="unknown"):
        enclave.ask(Request("clusters", 5, 2))


def test_ids_come_in_order_and_nothing_else_comes():
    counts = dirichlet()
    enclave = told(counts, flips=Flips(clusters=6))
    for view in list(views(counts, 4))[1::2]:
        ids = enclave.ask(Request.to_select(view))
        assert ids == sorted(set(ids))
        assert enclave.ask(Request.to_learn(view, [])) == []


def test_who_did_not_tell_is_not_selected():
    counts = dirichlet()
    enclave = told(counts, who=range(0, 60, 2), flips=Flips(clusters=3))
    view = list(views(counts, 1, k=25))[1]
    assert all(i % 2 == 0 for i in enclave.ask(Request.to_select(view)))


def test_the_service_wants_three_clients_and_hears_nobody_later():
    counts = np.eye(4, dtype=np.int64) * 9
    job, parties, secrets = parties_of(counts, flips=Flips(clusters=2))
    enclave = Direct(Service(job, dev_insecure.attest))
    request = Request("select", 0, 2)
    for i in range(3):
        with pytest.raises(RefusedError, match="at least 3"):
            enclave.ask(request)
        tell(enclave.relay, parties[i], distribution(counts[i], secrets[i]))
    assert len(enclave.ask(request)) == 2
    with pytest.raises(RefusedError, match="after the first selection"):
        tell(enclave.relay, parties[3], distribution(counts[3], secrets[3]))


@pytest.mark.parametrize(
    "bad", [b"", distribution(np.array([1, -1, 1]), bytes(32)), bytes(8 * 3 + 31), bytes(8 * 3 + 33)]
)
def test_counts_that_are_none_are_refused(bad):
    job, parties, _ = parties_of(np.ones((3, 3), dtype=int))
    with pytest.raises(RefusedError, match="no proper label counts"):
        tell(Service(job, dev_insecure.attest).relay, parties[0], bad)


@pytest.mark.parametrize("ids", [[-1], [60]])
def test_requests_about_nobody_are_refused(ids):
    with pytest.raises(RefusedError, match="not among"):
        told(dirichlet()).ask(Request("select", 0, 2, [np.array(ids)]))


def test_noise_exchanges_picks_and_nobody_outside_can_tell_which():
    counts, flips, rounds = dirichlet(), Flips(clusters=6, over_provision=False), 40
    plain = played(InEnclave(told(counts, flips=flips)), EnclaveAnswers(), counts, rounds, open_run=False)
    noisy = played(InEnclave(told(counts, flips=flips, noise=0.3)), EnclaveAnswers(), counts, rounds, open_run=False)
    same = played(InEnclave(told(counts, flips=flips, noise=0.3)), EnclaveAnswers(), counts, rounds, open_run=False)
    other = played(
        InEnclave(told(counts, flips=flips, noise=0.3, seed=5)), EnclaveAnswers(), counts, rounds, open_run=False
    )
    assert noisy == same
    assert noisy != other  # with other secrets of the clients, which the server does not know
    assert all(len(set(ids)) == 10 for ids in noisy)
    exchanged = [len(set(a) - set(b)) / 10 for a, b in zip(plain, noisy, strict=True)]
    assert np.mean(exchanged) == pytest.approx(0.3, abs=0.08)
    fresh = InEnclave(told(counts, flips=flips, noise=0.3))
    halfway = InEnclave(told(counts, flips=flips, noise=0.3))
    assert played(halfway, EnclaveAnswers(), counts, rounds, open_run=False, cut=11, fresh=fresh) == noisy


# ---- scoring and the process -----------------------------------------------------------------------------------------


def gone(pid, seconds=10.0):
    """Wait until a process is gone; one that nobody has waited for is a zombie, and gone as well."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def grouped():
    """Return clients that hold many samples of every label, and tests in groups: their counts are like nothing else."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(8), rng.integers(60, 90, 8))
    y = np.array([rng.choice(6, p=p) for p in rng.dirichlet(np.full(6, 3.0), 8)[owner]])
    x, tested = rng.normal(size=(len(y), 4)).astype(np.float32), np.arange(60) % 6
    test = rng.normal(size=(60, 4)).astype(np.float32), tested, np.where(tested > 2, "a", "b")
    federation = Federation.from_arrays(x, y, owner, test=test, test_clients=np.array_split(rng.permutation(60), 8))
    assert (federation.counts > 0).all()
    return federation


def test_the_process_from_start_to_end():
    work = session_of({"method.selector": "flips", "train.stop.vote": 0.5, "train.stop.target": 0.4}, grouped())
    federation, heard, events = work.federation, [], []
    flips, scoring = work.plan.selector, Scoring.of(work.experiment, federation, work.plan.local.head)
    with pytest.warns(InsecureWarning):
        started = start(
            flips,
            federation,
            work.plan.streams,
            OPEN,
            work.plan.rounds,
            scoring=scoring,
            note=lambda kind, **_: events.append(kind),
            heard=heard.append,
        )
    try:
        assert events == ["insecure"]
        view = work.plan.view(work.client_info, 0, lambda *_, **__: None)
        plain = flips.init(view)
        state = started.select.init(view)
        for round in range(4):
            view = work.plan.view(work.client_info, round, lambda *_, **__: None)
            assert started.select.select(state, view) == sorted(flips.select(plain, view))
        model, evaluator = work.initial_state().model, work.make_evaluator("cpu")
        assert started.evaluator.score(model) == evaluator.score(model)
        assert set(evaluator.score(model).figures) >= {"recall", "groups", "satisfied", "worst10"}
        assert started.evaluator(model, replace(view, round=3, rounds=4)) == evaluator.score(model)
        with pytest.raises(RefusedError, match="not among"):  # a refusal is no reason to end
            started.enclave.ask(Request("select", 0, 2, [np.array([99])]))
        assert started.enclave.process.poll() is None
    finally:
        started.close()
    assert gone(started.enclave.process.pid)
    assert started.enclave.process.returncode == 0
    started.close()
    with pytest.raises(FedstrataError, match="closed"):
        started.evaluator.score(model)

    seen = b"|".join(heard)
    for own in federation.counts:
        written = [own.astype(kind).tobytes() for kind in ("<i8", "<i4", "<i2", "<f4", "<f8")]
        assert not any(text in seen for text in [*written, json.dumps(own.tolist()).encode()])
    assert not any(x.numpy().tobytes() in seen for x in federation.test.x)
    assert federation.test.y.numpy().tobytes() not in seen
    assert all(key in seen for key in (b"dev-insecure", b"enclave-hello", b"accuracy"))  # it did hear the rest
    assert work.initial_state().model.params.numpy().tobytes() in seen


def test_an_error_inside_ends_the_process_and_tells_only_its_kind():
    work = session_of()
    scoring = Scoring.of(work.experiment, work.federation, work.plan.local.head)
    with pytest.warns(InsecureWarning):
        started = start(Flips(clusters=2), work.federation, Streams(0), OPEN, 9, scoring=scoring)
    with pytest.raises(FedstrataError, match=r"failed \(\w+\) and ended"):
        started.enclave.score(FlatModel(torch.zeros(3), torch.zeros(0)))
    assert gone(started.enclave.process.pid)
    with pytest.raises(FedstrataError, match="closed"):
        started.enclave.ask(Request("select", 0, 2))


ORPHAN = """
import sys, time, warnings
warnings.simplefilter("ignore")
from fedstrata.privacy.enclave.launch import Setting, start
from fedstrata.core.rng import Streams
from fedstrata.methods.selectors.flips import Flips
from fedstrata.testing import tiny_federation
started = start(Flips(clusters=2), tiny_federation(), Streams(0), Setting("dev-insecure", allow_insecure=True), 9)
print(started.enclave.process.pid, flush=True)
time.sleep(60)
"""


def test_the_process_ends_when_its_parent_dies():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True, env=env) as parent:
        pid = int(parent.stdout.readline())
        assert not gone(pid, 0.1)
        parent.send_signal(signal.SIGKILL)
    assert gone(pid)


def test_a_dead_process_is_noticed(monkeypatch):
    monkeypatch.setattr(starting, "SERVICE", "this")  # says something, and ends
    with pytest.raises(FedstrataError, match="exit code 0"):
        Enclave(parties_of(np.ones((3, 2), dtype=int))[0], OPEN)


@pytest.mark.skipif(sev_snp.DEVICE.exists(), reason="this is a SEV-SNP guest")
def test_nothing_is_started_where_there_is_no_hardware(monkeypatch):
    monkeypatch.setattr(starting, "Enclave", None)
    with pytest.raises(RequestError, match="SEV-SNP guest"):
        start(Flips(), tiny_federation(), Streams(0), Setting("sev-snp", measurement="00" * 48), 9)


# ---- requests that do not fit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("measurement", [None, "", "zz" * 48, "00" * 47])
def test_hardware_needs_a_measurement(measurement):
    with pytest.raises(RequestError, match=r"privacy\.enclave\.measurement"):
        start(Flips(), tiny_federation(), Streams(0), Setting("sev-snp", measurement=measurement), 9)


def test_labels_that_change_are_refused():
    federation = tiny_federation().moving(Drift())
    with pytest.raises(RequestError, match=r"data\.drift"):
        start(Flips(), federation, Streams(0), OPEN, 9)


def test_a_model_given_from_python_is_refused():
    federation = tiny_federation()
    asked = describe_experiment(None, None, {}, federation, nn.Linear(4, 3))
    with pytest.raises(RequestError, match="given"):
        Scoring.of(asked, federation, "")


def test_terms_come_back_as_they_were():
    work = session_of()
    scoring = Scoring.of(work.experiment, work.federation, "head")
    for terms in (Terms(6, 3, 9), Terms(6, 3, 9, 1, Flips(clusters=3, rate="reset"), 0.25, scoring)):
        assert Terms.read(terms.written()).written() == terms.written()
        assert Terms.read(terms.written()).flips == terms.flips
    with pytest.raises(RequestError, match="noise"):
        Terms.read(Terms(6, 3, 9, noise=2.0).written())

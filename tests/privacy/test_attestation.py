"""Whom an enclave's parties believe: reports of AMD's hardware with their chains, and software only if allowed."""

from __future__ import annotations

import ctypes
import ssl
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from enclave_parties import flipped
from packs import PACKS

from fedstrata import RequestError
from fedstrata.config.sections import EnclaveChoice
from fedstrata.core.rng import Streams
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy.enclave import der, dev_insecure, sev_snp
from fedstrata.privacy.enclave.attestation import Evidence, Policy, Tcb
from fedstrata.privacy.enclave.dev_insecure import DevInsecure, InsecureWarning
from fedstrata.privacy.enclave.launch import start
from fedstrata.privacy.enclave.sev_snp import SevSnp
from fedstrata.privacy.frames import RefusedError
from fedstrata.testing import tiny_federation

SNP = PACKS / "snp"
samples = pytest.mark.skipif(not SNP.is_dir(), reason=f"no attestation samples at {SNP}; see FEDSTRATA_PACKS")
THEN = datetime(2026, 1, 1, tzinfo=UTC)  # the samples' certificates are valid until 2029 and 2030
SNP_VERIFIER = SevSnp(now=lambda: THEN)


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
    read = sev_snp.AttestationReport(report)
    return read.report_data, Policy(read.measurement, debug=True, vmpl=read.vmpl)


def verify(parts, report_data=None, **changed):
    told, policy = said(parts[0])
    evidence = sev_snp.evidence_of(*parts)
    SNP_VERIFIER.verify(evidence, told if report_data is None else report_data, replace(policy, **changed))


@samples
@pytest.mark.parametrize("parts", [milan, debugged])
def test_real_reports_are_believed(parts):
    verify(parts())


@samples
def test_what_is_read_of_a_report():
    read = sev_snp.AttestationReport(milan()[0])
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
def test_what_a_signed_report_may_not_say(at, byte, why):
    """No chip signs these here, so what they claim is looked at without the signature."""
    report, *certificates = milan()
    changed = report[:at] + bytes([byte]) + report[at + 1 :]
    chip, policy = sev_snp.chain(*certificates, at=THEN), replace(said(report)[1], minimum=Tcb(3, 0, 8, 0x73))
    sev_snp.check_claims(sev_snp.AttestationReport(report), chip, policy)
    with pytest.raises(RefusedError, match=why):
        sev_snp.check_claims(sev_snp.AttestationReport(changed), chip, policy)


@samples
def test_a_policy_that_is_just_kept_is_kept():
    parts = milan()
    verify(parts, minimum=Tcb(3, 0, 8, 0x73), chips=frozenset({sev_snp.AttestationReport(parts[0]).chip}), debug=False)


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
        sev_snp.from_hardware(bytes(64), 0)
    with pytest.raises(RequestError, match="SEV-SNP guest"):
        sev_snp.attester(tmp_path, 0)


def test_a_report_is_asked_for_at_a_privilege_level(monkeypatch, tmp_path):
    """A device that answers as the driver of Linux does: status, size, then a report of the level asked for."""

    def answer(device, number, call):
        asked = ctypes.string_at(call.request, 96)
        report = bytearray(sev_snp.SIZE)
        report[0x30:0x34], report[0x50:0x90] = asked[64:68], asked[:64]
        reply = bytes(4) + sev_snp.SIZE.to_bytes(4, "little") + bytes(24) + bytes(report)
        ctypes.memmove(call.response, reply, len(reply))

    for name in ("device", *sev_snp.CERTIFICATES):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setattr(sev_snp, "DEVICE", tmp_path / "device")
    monkeypatch.setattr(pytest.importorskip("fcntl"), "ioctl", answer)
    monkeypatch.setattr(sev_snp, "evidence_of", lambda report, *_: sev_snp.AttestationReport(report))
    read = sev_snp.attester(tmp_path, 3)(bytes(range(64)))
    assert (read.vmpl, read.report_data) == (3, bytes(range(64)))


def test_software_attestation_is_refused_unless_it_is_allowed():
    evidence, policy = dev_insecure.attest(bytes(64)), Policy(dev_insecure.measured())
    with pytest.raises(RefusedError, match="no secrecy"):
        DevInsecure().verify(evidence, bytes(64), policy)
    with pytest.raises(RequestError, match="allow_insecure"):
        start(Flips(), tiny_federation(), Streams(0), EnclaveChoice(attestation="dev-insecure"), 9)
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

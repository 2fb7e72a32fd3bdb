"""Attestation by AMD SEV-SNP: a report that the processor signed, and the chain from its key to AMD's root.

    ARK (its key is known here) -> ASK -> VCEK: RSA-PSS with SHA-384; VCEK -> report: ECDSA on P-384 with SHA-384

A report is 1184 bytes, numbers little-endian; the last 512 are the signature of the first 672, r and s in 72 bytes
each and zeros behind them. The VCEK belongs to one chip at one set of security versions, both of which stand in its
extensions and in the report. AMD, SEV Secure Nested Paging Firmware ABI Specification, table 23.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384

from fedstrata.core.errors import RequestError
from fedstrata.privacy.enclave import der
from fedstrata.privacy.enclave.attestation import CHIP, REPORT_DATA, Evidence, Policy, Tcb, of_kind, refused, require
from fedstrata.privacy.frames import join, split

KIND = "sev-snp"
SIZE, SIGNED, NUMBER = 1184, 0x2A0, 72
VERSIONS = range(2, 6)  # of the report; the fields that are read here lie where they were
ALWAYS, MIGRATION, DEBUG = (1 << bit for bit in (17, 18, 19))  # bits of the guest policy

ROOTS = {"Milan": "9f056bee44377e29308cb5ffa895bdfb62d18881fa6bed8d6f075b0204089cb9"}  # SHA-256 of the ARK's key
AMD = "1.3.6.1.4.1.3704.1"
PRODUCT, HARDWARE = der.identifier(f"{AMD}.2"), der.identifier(f"{AMD}.4")
VERSION_OIDS = [der.identifier(f"{AMD}.3.{i}") for i in (1, 2, 4, 5, 6, 7, 3, 8)]  # by byte of a TCB

DEVICE = Path("/dev/sev-guest")
GET_REPORT = 0xC0205300  # _IOWR('S', 0, struct snp_guest_request_ioctl)
CERTIFICATES = ("vcek.der", "ask.der", "ark.der")


@dataclass(frozen=True)
class AttestationReport:
    """The fields of a report that are looked at."""

    data: bytes

    def __post_init__(self) -> None:
        require(len(self.data) == SIZE, f"a report has {SIZE} bytes, not {len(self.data)}")

    def number(self, at: int, size: int) -> int:
        """Return a number."""
        return int.from_bytes(self.data[at : at + size], "little")

    @property
    def policy(self) -> int:
        """What the guest's owner allowed its host."""
        return self.number(0x08, 8)

    @property
    def vmpl(self) -> int:
        """The privilege level that asked for the report."""
        return self.number(0x30, 4)

    @property
    def report_data(self) -> bytes:
        """What the guest put in."""
        return self.data[0x50 : 0x50 + REPORT_DATA]

    @property
    def measurement(self) -> bytes:
        """Hash of the guest as it was launched."""
        return self.data[0x90:0xC0]

    @property
    def chip(self) -> bytes:
        """Which processor."""
        return self.data[0x1A0 : 0x1A0 + CHIP]

    @property
    def reported(self) -> bytes:
        """The versions for which the VCEK was made."""
        return self.data[0x180:0x188]

    @property
    def tcbs(self) -> dict[str, Tcb]:
        """All sets of security versions."""
        places = {"current": 0x38, "reported": 0x180, "committed": 0x1E0, "launch": 0x1F0}
        read = {name: self.data[at : at + 8] for name, at in places.items()}
        return {name: Tcb(tcb[0], tcb[1], tcb[6], tcb[7]) for name, tcb in read.items()}


@dataclass(frozen=True)
class SevSnp:
    """Verifies reports and their chains."""

    kind: ClassVar[str] = KIND

    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def verify(self, evidence: Evidence, report_data: bytes, policy: Policy) -> None:
        """Check that AMD vouches for the report, then what it says."""
        parts = split(of_kind(evidence, KIND))
        require(len(parts) == 4, "a report and three certificates are expected")
        report, vcek = AttestationReport(parts[0]), chain(*parts[1:], at=self.now().replace(microsecond=0))
        _signed(report, vcek)
        check_claims(report, vcek, policy)
        require(report.report_data == report_data, "it was made for another key or another party")


def evidence_of(report: bytes, vcek: bytes, ask: bytes, ark: bytes) -> Evidence:
    """Put a report and its certificates (DER) together."""
    return Evidence(KIND, join([report, vcek, ask, ark]))


@lru_cache(maxsize=16)  # parties that live on one machine meet the same chain again and again, within a second
def chain(vcek: bytes, ask: bytes, ark: bytes, at: datetime) -> der.Certificate:
    """Return the chip's certificate if AMD's root vouches for it."""
    root, middle, chip = der.read(ark), der.read(ask), der.read(vcek)
    found = sha256(root.key).hexdigest()
    product = next((name for name, key in ROOTS.items() if key == found), None)
    require(product is not None, "its root is not one of AMD's that are known here")
    root.check(root, at)
    middle.check(root, at)
    chip.check(middle, at)
    named = chip.extensions.get(PRODUCT, b"")[2:].decode("ascii", "replace")
    require(named.split("-")[0] == product, f"the chip's certificate is for {named!r}, its root for {product!r}")
    return chip


def _signed(report: AttestationReport, vcek: der.Certificate) -> None:
    require(report.number(0x34, 4) == 1, "the report is not signed by ECDSA on P-384")
    require(report.number(0x48, 4) >> 2 & 7 == 0, "the report is not signed by the chip's own key")
    s_at = SIGNED + NUMBER
    require(not any(report.data[s_at + NUMBER :]), "there is something behind the signature")
    signature = encode_dss_signature(report.number(SIGNED, NUMBER), report.number(s_at, NUMBER))
    try:
        vcek.p384.verify(signature, report.data[:SIGNED], ECDSA(SHA384()))
    except InvalidSignature:
        raise refused("the report is not signed by this chip") from None


def check_claims(report: AttestationReport, vcek: der.Certificate, policy: Policy) -> None:
    """Check what a report says, on the word of whoever signed it."""
    _of_this_chip(report, vcek)
    _keeps(report, policy)


def _of_this_chip(report: AttestationReport, vcek: der.Certificate) -> None:
    """Compare what the report and the certificate say of the chip and of its versions."""
    require(vcek.extensions.get(HARDWARE) == report.chip, "report and certificate are of different chips")
    missing = [name for name in VERSION_OIDS if name not in vcek.extensions]
    require(not missing, "the chip's certificate does not say for which versions it is")
    versions = [der.number(vcek.extensions[name]) for name in VERSION_OIDS]
    require(versions == list(report.reported), "report and certificate are of different security versions")


def _keeps(report: AttestationReport, policy: Policy) -> None:
    version = report.number(0x00, 4)
    require(version in VERSIONS, f"the report has the version {version}, which is unknown here")
    require(bool(report.policy & ALWAYS), "the guest's policy is malformed")
    require(policy.debug or not report.policy & DEBUG, "the guest's policy allows its host to debug it")
    require(not report.policy & MIGRATION, "the guest's policy allows another guest to move it")
    require(report.vmpl == policy.vmpl, f"the report is of VMPL {report.vmpl}, and {policy.vmpl} is asked for")
    require(report.measurement == policy.measurement, "the guest runs other code")
    for name, tcb in report.tcbs.items():
        require(tcb.covers(policy.minimum), f"the {name} security versions {tcb} are below {policy.minimum}")
    require(policy.chips is None or report.chip in policy.chips, "the chip is not one of those that are allowed")


# ---- on the hardware ----------------------------------------------------------------------------------------------


class _Request(ctypes.Structure):
    """`struct snp_guest_request_ioctl` of Linux' sev-guest driver."""

    _fields_ = [
        ("version", ctypes.c_uint8),
        ("request", ctypes.c_uint64),
        ("response", ctypes.c_uint64),
        ("error", ctypes.c_uint64),
    ]


def attester(certificates: Path, vmpl: int) -> Callable[[bytes], Evidence]:
    """Return the attester of a guest; the folder holds vcek.der, ask.der and ark.der, as AMD publishes them.

    Reports are asked for at the privilege level `vmpl`, the one that parties insist on.
    """
    if not DEVICE.exists():
        raise RequestError(
            f'privacy.enclave.attestation = "sev-snp": there is no {DEVICE} here, so this is no SEV-SNP guest; the '
            "service has to run inside one"
        )
    absent = [name for name in CERTIFICATES if not (certificates / name).is_file()]
    if absent:
        raise RequestError(f"privacy.enclave.certificates = {str(certificates)!r} has no {', '.join(absent)}")
    vcek, ask, ark = ((certificates / name).read_bytes() for name in CERTIFICATES)
    return lambda report_data: evidence_of(from_hardware(report_data, vmpl), vcek, ask, ark)


def from_hardware(report_data: bytes, vmpl: int) -> bytes:
    """Let the processor sign a report over 64 bytes. Only a SEV-SNP guest can; not tried on hardware so far."""
    import fcntl  # noqa: PLC0415  which Windows has not

    asked = report_data + vmpl.to_bytes(4, "little") + bytes(28)
    request, response = ctypes.create_string_buffer(asked, len(asked)), ctypes.create_string_buffer(4000)
    call = _Request(1, ctypes.addressof(request), ctypes.addressof(response), 0)
    try:
        device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(device, GET_REPORT, call)
        finally:
            os.close(device)
    except OSError as error:
        raise RequestError(f"{DEVICE} gives no attestation report: {error}; is this a SEV-SNP guest?") from None
    status, size = (int.from_bytes(response.raw[at : at + 4], "little") for at in (0, 4))
    if status or size != SIZE:
        raise RequestError(f"{DEVICE} gives no attestation report: status {status}, {size} bytes")
    return response.raw[32 : 32 + SIZE]

"""What a party wants proved before it tells a secret: which code runs, where, and that this key is its own.

A service shows `Evidence` that holds 64 bytes of its choice, the report data; `channel.py` puts a hash of the
party's nonce and of the service's key there. A `Verifier` of the evidence's kind says whether a `Policy` is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from fedstrata.privacy.frames import RefusedError

MEASUREMENT = 48  # bytes
REPORT_DATA = 64
CHIP = 64


@dataclass(frozen=True)
class Evidence:
    """What a service shows of itself."""

    kind: str
    data: bytes


class Tcb(NamedTuple):
    """Security versions of what runs below a guest. All of them must be high enough: none makes up for another."""

    boot_loader: int = 0
    tee: int = 0
    snp: int = 0
    microcode: int = 0

    def covers(self, minimum: Tcb) -> bool:
        """Say whether no part is older than the minimum."""
        return all(is_ >= least for is_, least in zip(self, minimum, strict=True))


ANY = Tcb()


@dataclass(frozen=True)
class Policy:
    """What a party insists on."""

    measurement: bytes  # of the code
    minimum: Tcb = ANY
    debug: bool = False  # True: also a guest whose memory its host may read
    vmpl: int = 0  # privilege level inside the guest
    chips: frozenset[bytes] | None = None  # None: any chip

    def __post_init__(self) -> None:
        if len(self.measurement) != MEASUREMENT:
            raise ValueError(f"a measurement has {MEASUREMENT} bytes, not {len(self.measurement)}")


class Verifier(Protocol):
    """Reads one kind of evidence."""

    kind: ClassVar[str]

    def verify(self, evidence: Evidence, report_data: bytes, policy: Policy) -> None:
        """Raise `RefusedError` unless the evidence holds these report data and keeps the policy."""


Attester = Callable[[bytes], Evidence]  # report data -> evidence; only inside the service


def refused(why: str) -> RefusedError:
    """Say why an attestation is not believed."""
    return RefusedError(f"the attestation is refused: {why}")


def require(holds: bool, why: str) -> None:
    """Refuse unless something holds."""
    if not holds:
        raise refused(why)


def of_kind(evidence: Evidence, kind: str) -> bytes:
    """Return the evidence's data; another kind of evidence is refused."""
    require(evidence.kind == kind, f"it is of the kind {evidence.kind!r}, and {kind!r} is asked for")
    return evidence.data

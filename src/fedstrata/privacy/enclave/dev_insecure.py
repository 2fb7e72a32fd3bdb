"""Attestation by software, to try things out: whoever owns the machine can forge it and read the service's memory.

It shows that parties and service run the same code and that messages fit together, and keeps no secret from the host.
So it is refused unless it is allowed in so many words, and whoever allows it is told every time.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from functools import cache
from hashlib import sha384
from pathlib import Path
from typing import ClassVar

from fedstrata.core.errors import RequestError
from fedstrata.core.events import Log
from fedstrata.privacy.enclave.attestation import Evidence, Policy, of_kind, require
from fedstrata.privacy.frames import join, split

KIND = "dev-insecure"
SAID = (
    'privacy.enclave.attestation = "dev-insecure": this enclave is an ordinary process. Its attestation is software '
    "that the host can forge: it gives NO secrecy against the host, which can read every label distribution and the "
    "test set. For trying out only"
)


class InsecureWarning(UserWarning):
    """A run that looks protected and is not."""


@dataclass(frozen=True)
class DevInsecure:
    """Believes what the evidence says of itself, where that was allowed."""

    kind: ClassVar[str] = KIND

    allowed: bool = False

    def verify(self, evidence: Evidence, report_data: bytes, policy: Policy) -> None:
        """Compare what is told with what is asked for."""
        require(self.allowed, f"{KIND!r} gives no secrecy against the host and was not allowed")
        told = split(of_kind(evidence, KIND))
        require(len(told) == 2, "it is cut off")
        require(told[0] == policy.measurement, "the service runs other code")
        require(told[1] == report_data, "it was made for another key or another party")


def attest(report_data: bytes) -> Evidence:
    """Say what runs here; nobody vouches for it."""
    return Evidence(KIND, join([measured(), report_data]))


@cache
def measured() -> bytes:
    """Return a hash of the source code of this folder, in the place of a guest's launch measurement."""
    return sha384(join([path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))])).digest()


def permit(allowed: bool, note: Log) -> None:
    """Refuse, or say loudly what is missing: as a warning, in the events of the run, and in the log."""
    if not allowed:
        raise RequestError(
            f"privacy.enclave.attestation = {KIND!r} gives no secrecy against the host; to try it all the same, set "
            "privacy.enclave.allow_insecure = true; 'sev-snp' is the real one"
        )
    warnings.warn(SAID, InsecureWarning, stacklevel=3)
    note("insecure", what="privacy.enclave.attestation", used=KIND, why=SAID)
    logging.getLogger("fedstrata").warning(SAID)

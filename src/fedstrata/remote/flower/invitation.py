"""What the long message to a site says: where the stream is, whom to trust there, and the token that lets it in."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from fedstrata.privacy.frames import RefusedError

STREAM = b"fedstrata stream\n"  # how it begins: no other request does
LONGEST = 1 << 16  # bytes
FORMS = {
    "address": r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,253}):[0-9]{1,5}",
    "authority": r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]{1,20000}-----END CERTIFICATE-----\s*",
    "token": r"[0-9a-f]{64}",
    "site": r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}",
    "run": r"[A-Za-z0-9_-]{1,80}",
}


@dataclass(frozen=True)
class Invitation:
    """One site's way onto one run's stream."""

    address: str
    authority: str  # a certificate, PEM
    token: str  # 32 random bytes, as hexadecimal digits
    site: str
    run: str
    grace: float  # seconds in which a site whose connection broke can come back

    def written(self) -> bytes:
        """Write it."""
        return STREAM + json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, data: bytes) -> Invitation:
        """Read it; every field is checked."""
        try:
            told = json.loads(data.removeprefix(STREAM)) if len(data) <= LONGEST else None
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or set(told) != {*FORMS, "grace"}:
            raise RefusedError("an invitation to a stream has other fields than it should")
        for name, form in FORMS.items():
            if not isinstance(told[name], str) or not re.fullmatch(form, told[name]):
                raise RefusedError(f"an invitation to a stream has a {name} that is none")
        if not isinstance(told["grace"], int | float) or not 0 <= told["grace"] <= 3600:
            raise RefusedError("an invitation to a stream has a grace that is none")
        return cls(**told)

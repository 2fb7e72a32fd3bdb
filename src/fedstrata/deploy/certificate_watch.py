"""Ends of certificates: spoken of every day from weeks before, and the reason where one that has ended is met.

A site has no certificate but the authority's. When the server's ends, it reads from its own connection to the server.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from fedstrata.deploy import keys
from fedstrata.deploy.keys import ANEW, RESTART, Ending
from fedstrata.deploy.logs import note
from fedstrata.deploy.state import address

DAY = 24 * 3600.0
LOOK = 3600.0  # seconds between two looks at files
EXPIRED = 10  # what OpenSSL calls a certificate that has ended


def _utc() -> datetime:
    return datetime.now(UTC)


class CertificateWatch:
    """Speaks of the certificates of a key folder, and of the server's where that lies elsewhere."""

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        server: str = "",  # HOST:PORT, at a site
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _utc,
    ):
        self._folder, self._say, self._server, self._clock, self._now = folder, say, server, clock, now
        self._spoken: dict[tuple[str, bool], float] = {}  # of what, and whether it had ended -> when
        self._next = float("-inf")
        self._end: datetime | None = None

    def turn(self, end: datetime | None = None) -> None:
        """Speak of what ends soon, once a day; `end` is that of the server's certificate, if it is known."""
        if self._clock() < self._next and end == self._end:
            return
        self._next, self._end = self._clock() + LOOK, end
        now = self._now()
        for ending in self._endings(end, now):
            key = ending.what, ending.end <= now
            if self._clock() >= self._spoken.get(key, float("-inf")) + DAY:
                self._spoken[key] = self._clock()
                self._say(f"WARNING: {ending.said(now)}")
                note("certificate_ends", logging.WARNING, what=ending.what, ends=ending.end.isoformat())

    def _endings(self, end: datetime | None, now: datetime) -> list[Ending]:
        found = keys.endings(self._folder, now)
        if end is not None and end - now < keys.SOON:
            what = f"the certificate of the server at {self._server}"
            found.append(Ending(what, end, f"its server renews it: {keys.renewal()}, {RESTART}"))
        return found


def why_ended(error: Exception, server: str, authority: Path | None) -> str | None:
    """Say whose certificate has ended, where that is why there is no connection to a server."""
    reason = getattr(error, "reason", error)
    if not isinstance(reason, ssl.SSLCertVerificationError) or reason.verify_code != EXPIRED:
        return None
    if authority is not None and (end := _end_of(authority.read_bytes())) <= _utc():
        return f"{authority}, the certificate of the federation's authority, has ended on {end:%Y-%m-%d}; {ANEW}"
    shown = _shown_by(server)
    on = "" if shown is None else f" on {shown:%Y-%m-%d}"
    renewal = keys.renewal(None if authority is None else authority.parent)
    return f"the server's certificate has ended{on}; the server renews it: {renewal}, {RESTART}"


def _end_of(pem: bytes) -> datetime:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def _shown_by(server: str) -> datetime | None:
    """Return the end of the certificate that a server shows, unchecked: nothing goes by it but words."""
    try:
        return _end_of(ssl.get_server_certificate(address(server), timeout=5.0).encode())
    except (OSError, ValueError):
        return None

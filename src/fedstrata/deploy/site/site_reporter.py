"""A site's side of `deploy/site_reports.py`: looks how the site is doing, and tells the server."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fedstrata import __version__
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.storage.files import write_atomically
from fedstrata.core.storage.json_log import FILE, append_event
from fedstrata.deploy.logs import note
from fedstrata.deploy.node_signature import NodeKey
from fedstrata.deploy.shut_out import OtherProtocolError, RevokedError
from fedstrata.deploy.site.kept_connection import KeptConnection
from fedstrata.deploy.site_reports import (
    BUSY,
    EVERY,
    FULL,
    HEADER,
    LEFT,
    PATH,
    PROTOCOL,
    READY,
    VERSION,
    SiteReport,
)
from fedstrata.remote import protocol_version
from fedstrata.remote.site.private_socket import ask
from fedstrata.remote.site.process_state import STATE

PROBE = bytes(1 << 16)  # what a site must be able to write
AGAIN = 1.0  # seconds until a server that says nothing of a key is asked again
STARTING = "starting"  # what a site is busy with until it is connected
TAKEN, NO_KEY, CLOCK = 204, 404, 412  # what the gate answers to a report; whom it does not know; whose clock is off
TAKEN_ONCE = "taken.json"  # the fingerprint of the last key that the server took


@dataclass
class SiteReporter:
    """Tells one server of one site."""

    site: str
    server: str  # HOST:PORT
    keys: Path | None
    folder: Path  # the site's state: what must be written there, whatever it does
    socket: Path  # of its process
    say: Callable[[str], None]
    why: str = ""  # it goes, where its owner did not stop it; nothing of its data
    _next: float = 0.0
    _state: str = READY
    _since: float = field(default_factory=time.time)
    _known: bool = False  # whether the server has ever taken a report with this key, also before a restart
    _status: int = 0  # what it answered last; 0: nothing that counts
    _warned: bool = False  # of the clock
    _told: str = ""  # the server's version that was spoken of

    def __post_init__(self) -> None:
        # The same key as the connection's, also when another lies there: whoever is shut out with it must hear so.
        self._key = None if self.keys is None else NodeKey(self.keys / "node.key")
        self._known = self._key is not None and self._key.fingerprint == _read_taken(self.folder)
        self._line = KeptConnection(self.server, None if self.keys is None else self.keys / "ca.crt")

    @property
    def certificate_end(self) -> datetime | None:
        """When the server's certificate ends, once the server was reached; None without keys."""
        return self._line.certificate_end

    def turn(self) -> None:
        """Report, if it is time to; a change of state is also said here."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        self.report()

    def report(self) -> None:
        """Look how the site is doing, and tell the server."""
        state, about, roll = self._look()
        if state != self._state:
            if FULL in (state, self._state):
                self.say(
                    f"site {self.site}: {'DISK FULL: ' + about if state == FULL else 'there is room on its disk again'}"
                )
                self._log_disk(state == FULL, about)
            self._state, self._since = state, time.time()
        self._send(SiteReport(self.site, state, self._since, about[:200], __version__, roll))

    def _log_disk(self, full: bool, about: str) -> None:
        """Note it as well, if there is still room for a line: a disk that is full must not end a site."""
        event, level = ("disk_full", logging.ERROR) if full else ("disk_has_room", logging.INFO)
        told = {"why": about} if full else {}
        append_event(self.folder / FILE, event, level, site=self.site, server=self.server, **told)

    def begin(self) -> bool:
        """Ask before anything is read whether the key counts; False: it does not yet. Raise where it did once."""
        self._send(SiteReport(self.site, BUSY, time.time(), STARTING, __version__))
        return self._status != NO_KEY

    @property
    def taken(self) -> bool:
        """Whether the server took the last report: it knows the key."""
        return self._status == TAKEN

    def close(self) -> None:
        """Say that the site goes, and why; whoever does not hear it finds out. Who was shut out says nothing."""
        if self._status != NO_KEY:
            with suppress(RequestError):
                self._send(SiteReport(self.site, LEFT, time.time(), self.why, __version__))
        self._line.close()

    def check_known(self, patience: float) -> None:
        """Raise where the server knew this site's key, and does not any more.

        A server that is busy, or is starting and has yet to settle whose keys count, is asked again for a while: what
        ended the connection may be that it was shut out a moment ago.
        """
        report, deadline = SiteReport(self.site, self._state, self._since, "", __version__), time.monotonic() + patience
        if self._send(report):
            return
        self.say(f"site {self.site}: asking the server at {self.server} for {patience:.0f} s whether its key counts")
        while time.monotonic() < deadline and not self._send(report):
            time.sleep(AGAIN)

    def keep_taken(self) -> None:
        """Remember over restarts that the key counted: whoever is shut out later hears so at once."""
        if self._known:
            return
        self._known = True
        if self._key is not None:
            with suppress(OSError):  # a full disk, which the next report says
                write_atomically(self.folder / TAKEN_ONCE, json.dumps({"key": self._key.fingerprint}).encode())

    def _look(self) -> tuple[str, str, int]:
        if (why := unwritable(self.folder)) is not None:
            return FULL, f"{self.folder} cannot be written: {why}", 0
        try:
            told: dict[str, Any] = json.loads(ask(self.socket, STATE, 5.0))
        except (FedstrataError, ValueError):
            return READY, "", 0
        busy, run = bool(told.get("busy")), str(told.get("run") or "")
        return (BUSY if busy else READY), (f"run {run[:12]}" if busy and run else ""), int(told.get("roll") or 0)

    def _send(self, report: SiteReport) -> bool:
        """Send it; say whether the server answered if it knows the key."""
        headers = {
            HEADER: report.header(),
            **({} if self._key is None else self._key.sign_time()),
        }
        try:
            self._status, told = self._line.get(PATH, headers)
        except OSError:
            self._status = 0
            return False  # the server is away: whoever waits for it says so
        if told.get(PROTOCOL) is None and self._status != TAKEN:
            self._status = 0  # something before the server, which knows nothing of keys
        else:
            self._compare(told)
        self._say_clock()
        if self._status == NO_KEY and self._known:
            note("key_refused", logging.ERROR, why="it was revoked, or renewed")
            raise RevokedError(
                f"site {self.site}: the server at {self.server} does not take its key any more: it was "
                "revoked, or renewed; whoever made the keys knows more"
            )
        if self._status == TAKEN:
            self.keep_taken()
        return self._status in (TAKEN, NO_KEY, CLOCK)

    def _say_clock(self) -> None:
        """Say once that signatures bear a time that the server does not take; the key may well count."""
        if self._status == CLOCK and not self._warned:
            self.say(
                f"site {self.site}: the server at {self.server} takes no signature of this machine, because their "
                "clocks differ by more than five minutes; set the clock"
            )
        self._warned = self._status == CLOCK

    def _compare(self, told: Any) -> None:
        """Refuse a server that speaks another protocol; say so where only the version is another one."""
        version, spoken = str(told.get(VERSION)), str(told.get(PROTOCOL))
        if spoken != str(protocol_version.PROTOCOL):
            raise OtherProtocolError(
                f"the server at {self.server} has fedstrata {version} with protocol {spoken}, this site {__version__} "
                f"with protocol {protocol_version.PROTOCOL}; install the same at both"
            )
        if version not in (__version__, self._told):
            self._told = version
            self.say(f"the server has fedstrata {version}, this site {__version__}: the same protocol, so they fit")


def _read_taken(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / TAKEN_ONCE).read_text())["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def unwritable(folder: Path) -> str | None:
    """Say why nothing can be written into a folder; None: it can."""
    probe = folder / "probe"
    try:
        with probe.open("wb", buffering=0) as file:
            if file.write(PROBE) != len(PROBE):
                return "no space left on device"
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with suppress(OSError):
            probe.unlink()
    return None

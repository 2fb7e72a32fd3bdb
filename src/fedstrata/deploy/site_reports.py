"""How sites are doing, in their own words: every few seconds each tells the server, which keeps the last of it.

A site says it with a request to the gate that is nothing but headers, signed as all its requests are, so that it needs
neither Flower nor room on a disk: that is how a site can say that its disk is full. The gate writes what it hears into
`reports.json`, which `fedstrata deploy status`, the console and a run that waits for sites read.
"""

from __future__ import annotations

import json
import os
import re
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

PATH = "/fedstrata-site"
HEADER, VERSION, PROTOCOL = "fedstrata-report", "fedstrata-version", "fedstrata-protocol"
FILE = "reports.json"
EVERY = 5.0  # seconds between two reports
SILENT = 3  # reports that must be missing until a site counts as away
LONGEST = 2048  # characters of a report
MOST_ROLLS = 1 << 53  # whole numbers that every reader of JSON knows
SITES = 1000  # without keys, anybody may call himself a site
READY, BUSY, FULL, LEFT, AWAY = "ready", "busy", "disk full", "left", "away"
STATES = (READY, BUSY, FULL, LEFT)
STOPPED = "its owner stopped it"  # why a site left that gave no other reason


@dataclass(frozen=True)
class SiteReport:
    """What a site says of itself."""

    site: str
    state: str  # one of STATES
    since: float  # seconds since 1970, by its own clock
    about: str = ""  # busy: with which run; disk full: what cannot be written; left: why, if not by its owner
    version: str = ""  # of its fedstrata
    roll: int = 0  # the serial number of the roll that it goes by

    def header(self) -> str:
        """Write it as a header."""
        return b64encode(json.dumps(asdict(self)).encode()).decode()

    @classmethod
    def read(cls, header: str) -> SiteReport | None:
        """Read it; None: it is none."""
        try:
            told: Any = json.loads(b64decode(header, validate=True)) if len(header) <= LONGEST else None
            report = cls(**told)
            text = (report.site, report.about, report.version)
            right = report.state in STATES and all(isinstance(t, str) and t.isprintable() for t in text)
            right = right and isfinite(report.since) and type(report.roll) is int and 0 <= report.roll < MOST_ROLLS
        except (ValueError, TypeError, OverflowError, Base64Error, RecursionError):
            return None
        return report if right and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", report.site) else None


class ReportBook:
    """The last report of each site; the gate writes it."""

    def __init__(self, path: Path):
        self._path, self._known = path, read_reports(path.parent)

    def take(self, report: SiteReport) -> None:
        """Note what a site says, and when we heard it; `since` is by our clock, from the first such report on."""
        now, before = time.time(), self._known.get(report.site)
        same = before is not None and before["state"] == report.state and not _late(before, now)
        since = before["since"] if before is not None and same else now
        told = {**asdict(report), "since": since, "at": now}
        self._known = dict(
            [*((k, v) for k, v in self._known.items() if k != report.site), (report.site, told)][-SITES:]
        )
        part = self._path.with_name(self._path.name + ".part")
        part.write_text(json.dumps(self._known))  # not synced: after a power cut, sites say it again
        os.replace(part, self._path)


def read_reports(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the last report of each site, with `at`, when it was heard."""
    try:
        known: dict[str, dict[str, Any]] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return known


@dataclass(frozen=True)
class SiteCondition:
    """How a site is doing, as far as it is known here."""

    state: str  # one of STATES, or AWAY
    since: float
    about: str = ""
    heard: float = 0.0

    def words(self) -> str:
        """Put it into a line."""
        return f"{self.state}{f' ({self.about})' if self.about else ''} since {clock(self.since)}"


def conditions(folder: Path, now: float | None = None) -> dict[str, SiteCondition]:
    """Return how sites are doing that ever said anything; who falls silent is away from his last word on."""
    now, found = now or time.time(), {}
    for site, told in read_reports(folder).items():
        away = told["state"] == LEFT or _late(told, now)
        left = told["about"] or STOPPED
        why = left if told["state"] == LEFT else "it fell silent" if away else told["about"]
        since = told["at"] if away else told["since"]
        found[site] = SiteCondition(AWAY if away else told["state"], since, why, told["at"])
    return found


def clock(at: float) -> str:
    """Write a time as people read it: today's without the date."""
    then, today = time.localtime(at), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def _late(told: Mapping[str, Any], now: float) -> bool:
    return bool(now - told["at"] > SILENT * EVERY)

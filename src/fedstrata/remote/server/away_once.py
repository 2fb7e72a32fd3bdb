"""What a site does round after round is said once: that it is away, or why it refuses; its return is an event too.

In how many rounds it refused stays known: each round says who did, and how often, in its own event.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedstrata.core.events import Log
from fedstrata.remote.server.site_registry import SiteRegistry

REFUSED = "site_refused"
KINDS = (REFUSED, "site_not_scored")
NUMBER = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")  # a reason with another number in it is the same reason


def once_while_away(site_registry: SiteRegistry, log: Log) -> Log:
    """Return a log that says once that a site which is away gives no answer, and why one refuses."""
    return OncePerSite(site_registry, log).say


@dataclass
class OncePerSite:
    """Passes events on, without those that say of a site what was said of it before."""

    site_registry: SiteRegistry
    log: Log
    _silent: set[str] = field(default_factory=set)  # sites that are away, of whom it was said
    _told: dict[tuple[str, str], str] = field(default_factory=dict)  # by kind and site: the reason that was said last
    _rounds: Counter[str] = field(default_factory=Counter)  # in which a site has refused since it last took part
    _now: set[tuple[str, str]] = field(default_factory=set)  # what was said or left unsaid in this round
    _unsaid: Counter[str] = field(default_factory=Counter)  # refusals of this round

    def say(self, kind: str, **fields: Any) -> None:
        """Take an event, and pass on what is new of it."""
        self._silent.intersection_update(self.site_registry.away)
        if kind == "site_away":
            self._forget(str(fields["site"]))
        if kind in KINDS and not self._is_new(kind, str(fields["site"]), str(fields.get("why"))):
            return
        if kind == "dropped" and fields.get("why") == "no answer":
            if not (new := [client for client in fields["clients"] if self._is_silence(client)]):
                return
            fields = {**fields, "clients": new}
        if kind != "round":
            self.log(kind, **fields)
            return
        told = {"refused": dict(sorted(self._unsaid.items()))} if self._unsaid else {}
        self.log(kind, **fields, **told)
        self._end_round(fields)

    def _is_new(self, kind: str, site: str, why: str) -> bool:
        why, at = NUMBER.sub("#", why), (kind, site)
        if kind == REFUSED and at not in self._now:
            self._rounds[site] += 1
        new = self._told.get(at) != why
        self._told[at] = why
        self._now.add(at)
        if kind == REFUSED and not new:
            self._unsaid[site] += 1
        return new

    def _is_silence(self, client: int) -> bool:
        """Say whether no answer of a client is news: it is none of a site that refused once more, or is still away."""
        name = self.site_registry.names[client]
        if self._unsaid[name] or name in self._silent:
            return False
        if name in self.site_registry.away:
            self._silent.add(name)
        return True

    def _end_round(self, event: Mapping[str, Any]) -> None:
        """Note who takes part again."""
        names, now = self.site_registry.names, self._now
        taught = {names[client] for step in event["steps"] for client in step.get("clients", ())}
        self._now, self._unsaid = set(), Counter()
        for kind, site in [at for at in self._told if at not in now]:
            if kind != REFUSED and "loss_test" in event:
                del self._told[kind, site]
            elif kind == REFUSED and site in taught:
                del self._told[kind, site]
                why = f"it takes part again, after {self._rounds.pop(site)} rounds in which it was left out"
                self.log("site_back", round=event["round"], site=site, client=names.index(site), why=why)

    def _forget(self, site: str) -> None:
        for kind in KINDS:
            self._told.pop((kind, site), None)
        self._rounds.pop(site, None)

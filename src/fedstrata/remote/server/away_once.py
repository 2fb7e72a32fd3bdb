"""A site that is away is said to give no answer once, not in every round; its return is an event of its own."""

from __future__ import annotations

from typing import Any

from fedstrata.core.events import Log
from fedstrata.remote.server.site_registry import SiteRegistry


def once_while_away(site_registry: SiteRegistry, log: Log) -> Log:
    """Return a log that says once that a site which is away gives no answer."""
    said: set[str] = set()

    def once(kind: str, **fields: Any) -> None:
        away, names = site_registry.away, site_registry.names
        said.intersection_update(away)
        if kind == "dropped" and fields.get("why") == "no answer":
            new = [client for client in fields["clients"] if names[client] not in said]
            said.update(names[client] for client in new if names[client] in away)
            if not new:
                return
            fields = {**fields, "clients": new}
        log(kind, **fields)

    return once

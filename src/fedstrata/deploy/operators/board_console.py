"""The console on the board: the same overview as JSON, and the same words, signed by whoever serves the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast, get_args

from fedstrata.core.errors import RequestError
from fedstrata.deploy.operators.overview import RunRow, SiteRow, look
from fedstrata.deploy.operators.run_orders import name_operator, order
from fedstrata.deploy.server.federation_server import FederationServer
from fedstrata.deploy.site_reports import clock
from fedstrata.remote.server.orders import Action


class BoardConsole:
    """What a board shows of a federation. Without an operator's key it takes no orders where a server has keys."""

    def __init__(self, server: FederationServer, operator: Path | None):
        self._server, self._operator = server, operator
        self._who = name_operator(server, operator) if operator is not None or server.keys is None else ""

    def look(self) -> dict[str, Any]:
        """Return sites, runs and queue, last answers and what went wrong."""
        seen = look(self._server)
        return {
            "server": self._server.address,
            "operator": self._who,
            "may": self._who != "",
            "sites": [_site(row) for row in seen.sites],
            "runs": [_run(row) for row in seen.runs],
            "faults": list(seen.faults),
            "warnings": list(seen.warnings),
        }

    def order(self, action: str, run: str) -> str:
        """Say something to a run, with the operator's key."""
        if action not in (allowed := get_args(Action)):
            raise RequestError(f'"{action}" cannot be said to a run; allowed: {", ".join(allowed)}')
        return order(self._server, cast(Action, action), run, self._operator)


def _site(row: SiteRow) -> dict[str, str]:
    given, shown = row.given or {}, dict(zip(("state", "since", "heard"), row.told, strict=True))
    counted = {key: "-" if given.get(key) is None else str(given[key]) for key in ("rounds", "last_round", "refused")}
    return {"site": row.site, **shown, **counted, "about": row.about}


def _run(row: RunRow) -> dict[str, Any]:
    t = row.ticket
    about = {"number": t.id, "method": t.method, "who": t.who, "at": clock(t.at), "folder": t.path}
    return {**about, "state": row.state, "actions": list(row.actions)}

"""Which sites are up, and what each contributed to a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedstrata.core.errors import FedstrataError
from fedstrata.deploy import flower
from fedstrata.deploy.asking import ask
from fedstrata.deploy.certificate_watch import why_ended
from fedstrata.deploy.served import HEALTH
from fedstrata.deploy.server.federation_server import FederationServer
from fedstrata.deploy.site_reports import AWAY, STOPPED, SiteCondition, clock
from fedstrata.remote.flower.node_names import recall
from fedstrata.runs.folder import Run

UP = "online"
NEVER = "N/A"
SILENT = {"state": None, "about": ""}  # of a site that says nothing of itself


def sites(server: FederationServer, run: Path | None = None) -> list[dict[str, Any]]:
    """Return a row for each site: by name, where its key is registered, its node took part in a run, or it says it."""
    names = {node: site for site, node in server.nodes().items()} or recall(server.met)
    nodes = [n for n in _listed(server)["nodes"] if n["status"] != "unregistered"]
    rows = _latest([_row(node, names) for node in nodes if node["node-id"] in names or node["status"] == UP])
    told = server.conditions()
    there = {row["site"] for row in rows}
    unseen = [site for site, how in told.items() if site not in there and how.about != STOPPED]  # by Flower
    rows += [_away(site) | {"up": False} for site in unseen]
    rows = [_said(row, told.get(row["site"] or "")) for row in rows]
    if run is not None:
        given = count_contributions(Run.open(run))
        for row in rows:
            row["contributed"] = given.pop(row["site"], None)
        rows += [_away(site) | SILENT | {"contributed": what} for site, what in given.items()]
    return sorted(rows, key=lambda row: (row["site"] is None, str(row["site"])))


def _away(site: str) -> dict[str, Any]:
    """Return the row of a site that is none of the nodes that are known now."""
    return {"site": site, "node": None, "up": None, "since": None, "last_contact": None}


def _listed(server: FederationServer) -> dict[str, Any]:
    """Ask Flower; it would tell of a certificate that has ended as of a network that is down."""
    try:
        return flower.flwr(server.folder, flower.listing())
    except flower.FlowerError:
        try:
            ask(server.address, HEALTH, server.authority)
        except (OSError, ValueError) as error:
            if (why := why_ended(error, server.address, server.authority)) is not None:
                raise FedstrataError(f"the server at {server.address} cannot be asked: {why}") from None
        raise


def _said(row: dict[str, Any], how: SiteCondition | None) -> dict[str, Any]:
    """Add what a site says of itself; one that fell silent is away, whatever Flower still believes."""
    if how is None:
        return row | SILENT
    away = how.state == AWAY
    told = {"state": how.state, "about": how.about, "since": clock(how.since)}
    heard = clock(how.heard) if away or not row["up"] else row["last_contact"]
    return row | told | {"up": row["up"] and not away, "last_contact": heard}


def _latest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave one row a site: without keys, a site is a new node whenever it connects."""
    named = sorted(
        (row for row in rows if row["site"] is not None), key=lambda row: (row["up"], row["last_contact"] or "")
    )
    return [*{row["site"]: row for row in named}.values(), *(row for row in rows if row["site"] is None)]


def _row(node: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    up = node["status"] == UP
    last = "now" if up else node["offline-at"]
    return {
        "site": names.get(node["node-id"]),
        "node": node["node-id"],
        "up": up,
        "since": node["online-at"] if up else None,
        "last_contact": None if last == NEVER else last,
    }


def count_contributions(run: Run) -> dict[str, dict[str, Any]]:
    """Count from a run's events what every site did; sites are named by the event `sites`."""
    names: list[str] = []
    given: dict[str, dict[str, Any]] = {}
    samples = _samples(run)
    for event in run.events():
        if event["event"] == "sites":
            names = list(event.get("wall", event)["sites"])
            for name in names:
                nothing = {"samples": samples.get(name), "rounds": 0, "steps": 0, "last_round": None, "refused": 0}
                given.setdefault(name, nothing)
        elif event["event"] == "site_refused" and event["site"] in given:
            given[event["site"]]["refused"] += 1
        elif event["event"] == "round":
            taught = [client for step in event["steps"] for client in _teachers(step)]
            for client in sorted(set(taught)):
                if client < len(names):
                    row = given[names[client]]
                    row["rounds"] += 1
                    row["steps"] += taught.count(client)
                    row["last_round"] = event["round"]
            for name, times in event.get("refused", {}).items():  # those that were not said again
                if name in given:
                    given[name]["refused"] += times
    return given


def _samples(run: Run) -> dict[str, int]:
    """Return how many samples each site has, as it said when the run began."""
    try:
        told = json.loads((run.path / "sites.json").read_text())["sites"]
        return {site: int(facts["samples"]) for site, facts in told.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _teachers(step: dict[str, Any]) -> list[int]:
    return list(step["clients"]) if step["kind"] in ("train", "gradient") else []

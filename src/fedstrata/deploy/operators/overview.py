"""A federation at a glance: sites, runs, whom they wait for and what went wrong last. Only files are read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstrata.core.events import FAULTS, describe_fault
from fedstrata.deploy import keys
from fedstrata.deploy.operators.run_orders import actions
from fedstrata.deploy.operators.run_queue import Ticket, control_of, tickets
from fedstrata.deploy.operators.status import count_contributions
from fedstrata.deploy.processes import running
from fedstrata.deploy.server.federation_server import FederationServer
from fedstrata.deploy.site_reports import SiteCondition, clock
from fedstrata.remote.server.orders import Action
from fedstrata.remote.server.waiting_note import read_waiting
from fedstrata.runs.folder import Run

FAULTS_SHOWN = 5


@dataclass(frozen=True)
class SiteRow:
    """One site."""

    site: str
    condition: SiteCondition | None  # None: it has never said anything, or is no site of the federation any more
    given: Mapping[str, Any] | None  # to the run that goes on, or was the last
    known: bool = True  # whether it may connect

    @property
    def told(self) -> tuple[str, str, str]:
        """What is shown of it: its state, since when, and when it was last heard."""
        if self.condition is None:
            return ("never heard of" if self.known else "not on the roll"), "-", "-"
        return self.condition.state, clock(self.condition.since), clock(self.condition.heard)

    @property
    def about(self) -> str:
        """What it said to its state."""
        return "" if self.condition is None else self.condition.about


@dataclass(frozen=True)
class RunRow:
    """One run that goes on or waits."""

    ticket: Ticket
    state: str
    actions: Sequence[Action]  # what an operator can say to it now


@dataclass(frozen=True)
class Overview:
    """All of it."""

    sites: Sequence[SiteRow]
    runs: Sequence[RunRow]
    faults: Sequence[str]
    warnings: Sequence[str]
    latest: Path | None


def look(server: FederationServer) -> Overview:
    """Look now."""
    latest, how, may = server.latest(), server.conditions(), server.nodes()
    events = list(Run(latest).events()) if latest is not None else []
    given = count_contributions(Run(latest)) if latest is not None else {}
    names = sorted({*may, *how, *given})
    faults = [describe_fault(event) for event in events if event["event"] in FAULTS][-FAULTS_SHOWN:]
    return Overview(
        [SiteRow(name, how.get(name), given.get(name), server.keys is None or name in may) for name in names],
        [RunRow(ticket, run_state(server, ticket), actions(server, ticket)) for ticket in tickets(server.folder)],
        [f"{f'round {f.round}: ' if f.round else ''}{FAULTS[f.kind]}: {f.why}" for f in faults],
        _warnings(server),
        latest,
    )


def _warnings(server: FederationServer) -> list[str]:
    ends = [] if server.keys is None else keys.expiring(Path(server.keys))
    return ends if running(server.folder) else [f"the server on port {server.port} does not run", *ends]


def run_state(server: FederationServer, ticket: Ticket) -> str:
    """Say how a run is doing: whose turn it is, in which round it is, whom it waits for and since when."""
    control = control_of(server, ticket)
    if (word := control.latest("stop", "refuse")) is not None:
        return "stops before its next round" if word.action == "stop" else f"refused by {word.operator}"
    if not ticket.submitted:
        asks = server.approval and control.latest("approve") is None
        return "waits for an operator's approval" if asks else "waits for its turn"
    word = control.latest("pause", "continue")
    run = Run(Path(ticket.path))
    done = sum(event["event"] == "round" for event in run.events()) if (run.path / "events.jsonl").exists() else None
    state = "waits for sites to begin" if done is None else f"{done} round{'s' * (done != 1)} done"
    if word is not None and word.action == "pause":
        return f"paused by {word.operator}; {state}"
    waiting = waits_for(server.folder, run.path)
    return f"{state}; {waiting}" if waiting else state


def waits_for(folder: Path, run: Path | None, now: float | None = None) -> str:
    """Say whom a run waits for, and since when; nothing where it waits for nobody in particular."""
    told = read_waiting(folder)
    awaited = told.get("for") or {}
    if not awaited or (run is not None and told.get("run") != str(run)):
        return ""
    said = [f"{site} since {clock(since)} ({(now or time.time()) - since:.0f} s)" for site, since in awaited.items()]
    return f"waiting for {', '.join(said)}"

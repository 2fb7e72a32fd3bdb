"""What did not go as asked: the events that a user should know of, in words for the terminal and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

FAULTS = {  # kinds of events, and what people call them
    "dropped": "report lost",
    "no_update": "no update arrived",
    "fallback": "fallback",
    "warning": "warning",
    "training": "training goes wrong",
    "fewer_clients": "too few clients there",
    "label_dropped": "label left out",
    "batch_left_out": "batch left out",
    "label_masking_repeated": "masking of labels repeated",
    "insecure": "insecure",
    "resumed": "resumed",
    "waiting": "waiting for sites",
    "site_away": "site away",
    "site_back": "site back",
    "site_changed": "site has other data",
    "site_refused": "site left out",
    "site_not_scored": "site not scored",
    "not_scored_by_label": "labels not scored",
    "state_lost": "site lost its state",
    "sum_reused": "sum from before the crash",
}


class Fault(NamedTuple):
    """Something a user should know of."""

    round: int | None
    kind: str
    why: str
    clients: tuple[int, ...] = ()


def describe_fault(event: Mapping[str, Any]) -> Fault:
    """Put an event into words."""
    kind, round, why = event["event"], event.get("round"), str(event.get("why", ""))
    clients = event.get("clients", [event["client"]] if "client" in event else ())
    if kind == "resumed":
        round, why = event["wall"]["round"], "the run went on from its checkpoint"
    elif kind == "no_update":
        why = "the model stayed as it was"
    elif kind == "fewer_clients":
        why = f"{event['wanted']} clients were wanted, {event['there']} were there"
    elif kind in ("fallback", "warning", "insecure"):
        used = f"{event['used']} used: " if "used" in event else ""
        why = f"{event.get('what', '')}: {used}{why}"
    elif kind == "label_dropped":
        why = f"label {event['stratum']}: {why}"
    elif kind == "batch_left_out":
        why = f"{event['samples']} samples: {why}"
    elif kind == "label_masking_repeated":
        why, clients = "clients were missing, the others began again", event["missing"]
    elif kind == "waiting":
        why = f"{event['wanted']} sites are needed; away are {', '.join(event['sites'])}"
    elif kind == "site_changed":
        why = f"{event['site']} has {event['samples']} samples, and had {event['before']}"
    elif "site" in event:
        why = f"{event['site']}: {why}" if why else str(event["site"])
    return Fault(int(round) if round else None, kind, why, tuple(map(int, clients)))  # 0 is before the first round

"""Events, and those that a user should know of in words for the terminal and the report: faults and choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class Log(Protocol):
    """Where events go."""

    def __call__(self, kind: str, **fields: Any) -> None:
        """Make an event; what a clock said stands under `wall` and is never compared."""


FAULTS = {  # kinds of events, and what people call them
    "dropped": "report lost",
    "no_update": "no update arrived",
    "poisoned_sum": "sum not used",
    "samples_overstated": "samples not believed",
    "samples_bounded": "samples bounded",
    "fallback": "fallback",
    "warning": "warning",
    "training": "training goes wrong",
    "fewer_clients": "too few clients there",
    "label_dropped": "label left out",
    "batch_left_out": "batch left out",
    "label_masking_repeated": "masking of labels repeated",
    "insecure": "insecure",
    "resumed": "resumed",
    "tracker": "a tracker is gone",
    "waiting": "waiting for sites",
    "approval": "waiting for owners of sites",
    "site_away": "site away",
    "site_back": "site back",
    "site_joined": "site joined",
    "site_waits": "site waits for the next run",
    "site_version": "site has another version",
    "roll_refused": "roll refused",
    "paused": "paused",
    "continued": "goes on",
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
        used = f"; used instead: {event['used']}" if "used" in event else ""
        why = f"{event.get('what', '')}: {why}{used}"
    elif kind == "tracker":
        round, why = None, f"{event['what']}: {why}"
    elif kind == "label_dropped":
        why = f"label {event['stratum']}: {why}"
    elif kind == "batch_left_out":
        why = f"{event['samples']} samples: {why}"
    elif kind == "label_masking_repeated":
        why, clients = "clients were missing, the others began again", event["missing"]
    elif kind in ("samples_overstated", "samples_bounded"):
        claimed = f"{', '.join(map(str, event['said']))} were claimed, {event['to']} count"
        why = ": ".join(filter(None, [", ".join(event.get("sites", ())), claimed, why]))
    elif kind == "waiting":
        why = f"{event['wanted']} sites are needed; away are {', '.join(event['sites'])}"
    elif kind == "site_changed":
        why = f"{event['site']} has {event['samples']} samples, and had {event['before']}"
    elif "site" in event:
        why = f"{event['site']}: {why}" if why else str(event["site"])
    return Fault(int(round) if round else None, kind, why, tuple(map(int, clients)))  # 0 is before the first round


def describe_choice(event: Mapping[str, Any]) -> str:
    """Say what a recipe chose for a stage, and why."""
    used = event["used"] if isinstance(event["used"], list) else [event["used"]]
    return f"{event['stage'].replace('_', ' ')} {' + '.join(part['kind'] for part in used) or 'none'}: {event['why']}"

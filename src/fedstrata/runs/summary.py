"""What a run says of itself: the events it begins with, and the summary and the model it ends with."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from math import isfinite
from typing import Any

import numpy as np

from fedstrata import __version__
from fedstrata.core.engine import Log
from fedstrata.core.plan import per_round
from fedstrata.privacy.statement import statement
from fedstrata.runs.folder import Run
from fedstrata.runs.schedule_account import schedule_figures
from fedstrata.runs.session import Session
from fedstrata.server.loop import model_to_evaluate
from fedstrata.server.metrics import CLIENTS_LISTED, first_round
from fedstrata.server.state import State


def log_start(session: Session, log: Log) -> None:
    """Make the events that say what a run begins with."""
    federation, plan = session.federation, session.plan
    log(
        "start",
        version=__version__,
        clients=len(federation),
        samples=federation.samples,
        left_out=federation.left_out,
        test_samples=federation.tests,
        classes=list(federation.classes),
        parameters=plan.space.P,
        fingerprint=federation.fingerprint,
        **_label_mix(session),
        wall=_versions(),
    )
    listed = len(federation) <= CLIENTS_LISTED and (session.remote is None or "counts" in plan.needs)
    if listed and not session.hides_data:
        log("clients", counts=federation.counts.tolist())
    for note in federation.notes:
        log("fallback", what="data.partition", why=note)
    for kind, fields in session.private.notes:
        log(kind, **fields)
    if session.client_info.setup_bytes:
        log("setup", told=sorted(plan.needs), bytes_up=session.client_info.setup_bytes)
    asked = per_round(plan.clients_per_round, len(federation))
    if asked > len(session.client_info.holders):
        log(
            "fallback",
            what="train.clients_per_round",
            used=len(session.client_info.holders),
            why="fewer clients hold data",
        )


def write_result(session: Session, folder: Run, state: State, seconds: float) -> None:
    """Write the summary and the final model."""
    rounds = [e for e in folder.events() if e["event"] == "round"]
    last = next(e for e in reversed(rounds) if "accuracy" in e)
    curve = [e["accuracy"] for e in rounds if "accuracy" in e]
    summary = {
        "method": session.experiment.method.name,
        "seed": session.experiment.train.seed,
        "rounds": state.round,
        "accuracy": last["accuracy"],
        "balanced_accuracy": last["balanced_accuracy"],
        "worst10": last.get("worst10"),
        **asdict(state.traffic),
        "seconds": round(seconds, 3),
        "time": state.clock,
        "run_dir": str(folder.path),
        "loss_test": last["loss_test"],
        "client_mean": last.get("client_mean"),
        "jain": last["jain"],
        "best_accuracy": max(curve),
        "last10_accuracy": float(np.mean(curve[-10:])),
        "bytes_setup": session.client_info.setup_bytes,
        "bytes_evaluate": sum(event.get("bytes_evaluate", 0) for event in rounds),
        "precision": session.experiment.engine.precision,
        "stopped": state.stopped or "all rounds played",
        "remarks": [
            *_remarks(folder.events()),
            *session.stopping.remarks(state.stopped, state.round, state.traffic, state.clock),
        ],
        "privacy": _statement(session, state.round),
    }
    summary |= {key: last[key] for key in ("personal_mean", "personal_worst10") if key in last}
    summary |= schedule_figures(session, state, rounds)
    if session.accountant is not None:
        summary["epsilon"] = _finite(session.accountant.epsilon(state.round))
    if (target := session.experiment.train.stop.target) is not None:
        summary["rounds_to_target"] = first_round(curve, target)
        reached = [event["time"] for event in rounds if event.get("accuracy", -1.0) >= target]
        summary["time_to_target"] = reached[0] if reached else None
    classes: Sequence[Any] = session.federation.classes
    if session.experiment.privacy.labels != "none":  # whoever has the model should not have the names with it
        classes = [f"placeholder {i}" for i in range(len(classes))]
    about = {"classes": tuple(classes), "method": session.experiment.method.name}
    module = session.plan.local.build().to(session.plan.local.dtype)
    module.load_state_dict(session.plan.space.named(model_to_evaluate(session.plan, state)), strict=False)
    folder.write_result({k: v.clone() for k, v in module.state_dict().items()}, about, summary)


def _label_mix(session: Session) -> dict[str, Any]:
    """Tell each label's share of all samples, where that is known here and no secret."""
    ground_truth = session.client_info.ground_truth if session.remote is None else None
    return {} if ground_truth is None or session.hides_data else {"mix": ground_truth.mix.tolist()}


def _statement(session: Session, rounds: int) -> dict[str, Any]:
    accountant = session.accountant
    guarantee = None if accountant is None else accountant.describe()
    epsilon = None if accountant is None else _finite(accountant.epsilon(rounds))
    told, clusters, here = session.client_info.told, session.private.clusters, session.remote is None
    return statement(session.experiment, session.plan, told, clusters, guarantee, epsilon, here)


def _versions() -> dict[str, str]:
    """Say with what, and when, a run began."""
    found = {name: version(name) for name in ("torch", "numpy", "scikit-learn")}
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return {"began": began, "python": platform.python_version(), **found, "system": platform.platform()}


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None


def _remarks(events: list[dict[str, Any]]) -> list[str]:
    """Say in words what a user should not miss, however quiet the run was."""
    remarks = []
    without = {event["round"] for event in events if event["event"] == "no_update"}
    rounds = [event for event in events if event["event"] == "round" and event["loss_train"] is None]
    if lost := sum(event["round"] in without for event in rounds):
        remarks.append(f"in {lost} of the rounds no update arrived, and the model stayed as it was")
    broken = [len(e["clients"]) for e in events if e["event"] == "dropped" and e["why"] == "not finite"]
    if broken:
        remarks.append(f"{sum(broken)} reports were dropped because training was not finite; try a smaller train.lr")
    return remarks

"""What the summary of a run along a schedule of labels adds: the epoch of the best model, transfers by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np

from fedstrata.methods.drivers.scheduled import ScheduledDriver
from fedstrata.methods.schedules.transfers import expected_transfers
from fedstrata.runs.session import Session
from fedstrata.server.metrics import CLIENTS_LISTED
from fedstrata.server.state import State


def schedule_figures(session: Session, state: State, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `best_epoch` (the paper's E#) and `transfers` an epoch (its f_freq); nothing where none is followed."""
    driver = session.plan.driver
    if not isinstance(driver, ScheduledDriver):
        return {}
    scored = [e for e in rounds if "accuracy" in e]
    best = max(scored, key=lambda e: float(e["accuracy"]), default=None)  # the first of several
    epochs = state.round / driver.schedule.rounds_per_epoch
    told = {"epochs": epochs, "counted": _by_client(session, state.participation / epochs)}
    truth = session.client_info.ground_truth
    drawn = driver.schedule.clients == "binomial"  # all holders are asked in every batch, which is not the paper's way
    if session.remote is None and truth is not None and session.federation.moves is None and not drawn:
        batch_size = session.plan.local.batch_size if driver.steps_at_server else None
        told["expected"] = _by_client(session, expected_transfers(driver.schedule, truth.stock, batch_size))
    best_epoch = None if best is None else ceil(best["round"] / driver.schedule.rounds_per_epoch)
    return {"best_epoch": best_epoch, "transfers": told}


def _by_client(session: Session, counts: np.ndarray) -> dict[str, Any]:
    """Tell the mean over all clients; the most and each one's where that tells nothing of hidden data."""
    told: dict[str, Any] = {"mean": round(float(counts.mean()), 2)}
    if not session.hides_data:
        told["most"] = round(float(counts.max()), 2)
        if len(counts) <= CLIENTS_LISTED:
            told["clients"] = counts.round(2).tolist()
    return told

"""Rounds to be replayed in a page: whom the server asked, whose reports came, what went up and down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from fedstrata.report.document import embed_json, of_methods
from fedstrata.report.figures.federation import by_cluster
from fedstrata.report.figures.style import ROUNDS, thin
from fedstrata.report.run_data import RunData

CLIENTS = 400  # most that can be told apart
LABELS = 20  # most that have a colour each
SAID = (
    "Each dot is a client, with the labels it holds below it; clients of a cluster share a frame. A filled dot "
    "answered, a crossed one did not. Play the rounds, or step through them."
)
SCRIPT = "replay.js"
TITLE = "A round, step by step"


def replay(run_data: RunData) -> dict[str, Any] | None:
    """Return what the page needs to replay a run's rounds: all, or as many as heat maps have columns."""
    if not len(run_data) or not run_data.steps or not 0 < run_data.clients <= CLIENTS:
        return None
    order, cluster, _ = by_cluster(run_data)
    place = np.argsort(order)
    rounds = run_data.rounds.tolist()
    up, down = (np.diff(np.nan_to_num(run_data.known(f"bytes_{way}")), prepend=0).tolist() for way in ("up", "down"))
    accuracy, by_round = run_data.known("accuracy"), _by_round(run_data, place)
    why = {f.round: f.why for f in run_data.faults if f.kind == "dropped"}
    frames = [
        {
            "round": rounds[at],
            "steps": by_round[rounds[at]],
            "up": int(up[at]),
            "down": int(down[at]),
            "accuracy": None if np.isnan(accuracy[at]) else round(float(accuracy[at]), 4),
            **({"why": why[rounds[at]]} if rounds[at] in why else {}),
        }
        for at in thin(len(rounds), ROUNDS).tolist()
        if rounds[at] in by_round
    ]
    if not frames:
        return None
    last = run_data.asked("train", "rounds") or rounds[-1]
    return {"clients": _clients(run_data, order, cluster), "labels": run_data.classes, "of": last, "rounds": frames}


def frame(runs_data: Sequence[RunData]) -> Iterator[str]:
    """Return a frame in which runs can be replayed, with what it needs; nothing where no run can be."""
    held = {run_data.name: own for run_data in runs_data if (own := replay(run_data))}
    if not held:
        return
    rows = {run_data.name: run_data.row for run_data in runs_data}
    options = "".join(f"<option{of_methods([rows[name]])}>{escape(name)}</option>" for name in held)
    which = f"<label>Run <select data-run>{options}</select></label>" if len(held) > 1 else ""
    speeds = "".join(
        f'<option value="{ms}">{name}</option>' for name, ms in (("slow", 1600), ("normal", 800), ("fast", 250))
    )
    yield f'<figure class="replay" id="figure-replay"><h3>{TITLE}</h3><figcaption>{SAID}</figcaption>'
    yield f'<div class="controls">{which}<button type="button" data-play>Play</button>'
    yield '<button type="button" data-back aria-label="One step back">Back</button>'
    yield '<button type="button" data-step aria-label="One step on">Step</button>'
    yield '<label>Round <input type="range" min="0" value="0" data-round></label>'
    yield f"<label>Speed <select data-speed>{speeds}</select></label></div>"
    yield '<p class="said" role="status"></p><svg role="img" aria-label="The server and its clients"></svg></figure>'
    yield f'<script type="application/json" id="replays">{embed_json(held)}</script>'


def _by_round(run_data: RunData, place: np.ndarray) -> dict[int, list[list[Any]]]:
    """Return the steps of each round: what was asked for, whose reports counted, whose did not, how often."""
    found: dict[int, list[list[Any]]] = {}
    for step in run_data.steps:
        here, missing = (_places(place, who) for who in (step.clients, step.missing))
        found.setdefault(step.round, []).append([step.kind, here, missing, step.times])
    return found


def _places(place: np.ndarray, clients: np.ndarray) -> list[int]:
    known = clients[(clients >= 0) & (clients < len(place))]
    return np.unique(place[known]).tolist()  # type: ignore[no-any-return]


def _clients(run_data: RunData, order: np.ndarray, cluster: np.ndarray) -> list[dict[str, Any]]:
    counts = run_data.counts
    told = []
    for client, own in zip(order.tolist(), cluster.tolist(), strict=True):
        about: dict[str, Any] = {"name": run_data.client_name(client), "cluster": own}
        if counts is not None and len(counts) == len(order):
            total = max(int(counts[client].sum()), 1)
            about["samples"] = int(counts[client].sum())
            if counts.shape[1] <= LABELS:
                about["mix"] = {str(i): round(n / total, 3) for i, n in enumerate(counts[client].tolist()) if n}
        told.append(about)
    return told

"""Run folders as a run writes them, without training: for tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedstrata.config.experiment import Experiment
from fedstrata.runs.folder import Run


def begun(
    path: Path, *, method: str = "fedavg", clients: int = 8, labels: int = 4, rounds: int = 5, seed: int = 0
) -> Run:
    """Make a run folder without a round yet."""
    overrides = {"method.name": method, "train.rounds": rounds, "train.seed": seed, "data.clients": clients}
    run = Run.create(path, Experiment.of(None, **overrides).to_toml())
    classes = [f"label {i}" for i in range(labels)]
    about = {"samples": 100, "test_samples": 20, "left_out": 0, "parameters": 10, "fingerprint": "abc"}
    run.log("start", version="0.1.0", clients=clients, classes=classes, mix=[1 / labels] * labels, **about)
    return run


def round_event(round: int, clients: int = 8, labels: int = 4) -> dict:
    """Return the event of a round that goes as rounds go: accuracy rises, half of the clients take part."""
    rng = np.random.default_rng(round)
    skill = 1 - 0.9 / (1 + round / 10)
    here = rng.permutation(clients)[: max(1, clients // 2)].tolist()
    recall = np.clip(skill - 0.1 * np.arange(labels) / labels + 0.02 * rng.normal(size=labels), 0, 1)
    moved = (1 / round + rng.random(len(here))).round(4).tolist()
    own = np.clip(1000 * (skill + 0.1 * rng.normal(size=clients)), 0, 1000).astype(int)
    return {
        "event": "round",
        "round": round,
        "accuracy": float(recall.mean()),
        "balanced_accuracy": float(recall.mean()),
        "loss_test": float(2.3 * (1 - skill)),
        "recall": recall.round(4).tolist(),
        "worst10": float(own.min() / 1000),
        "client_accuracy": own.tolist(),
        "label_divergence": float(0.1 + 0.05 * rng.random()),
        "labels": rng.integers(1, 50, labels).tolist(),
        "update_norm": float(1 / round),
        "jain": 1.0,
        "steps": [{"kind": "train", "clients": here, "update_norm": dict(zip(map(str, here), moved, strict=True))}],
        "bytes_up": 1000 * round,
        "bytes_down": 1000 * round,
        "bytes_p2p": 0,
        "client_updates": len(here) * round,
        "time": float(round),
        "wall": {"seconds": float(round)},
    }


def write_rounds(run: Run, first: int, last: int, clients: int = 8, labels: int = 4) -> None:
    """Append rounds, `last` included."""
    with (run.path / "events.jsonl").open("a") as file:
        for round in range(first, last + 1):
            file.write(json.dumps(round_event(round, clients, labels)) + "\n")


def write_long(run: Run, rounds: int, clients: int = 8, labels: int = 4) -> None:
    """Append very many rounds in little time: the first hundred, again and again."""
    events = [round_event(round, clients, labels) for round in range(1, 101)]
    texts = [json.dumps(event).partition(f'"round": {event["round"]},')[::2] for event in events]
    with (run.path / "events.jsonl").open("a") as file:
        for at in range(rounds):
            before, after = texts[at % 100]
            file.write(f'{before}"round": {at + 1},{after}\n')


def conclude(run: Run, accuracy: float = 0.9, rounds: int = 5) -> None:
    """Write the summary, which marks the run as finished."""
    summary = {
        "method": "fedavg",
        "accuracy": accuracy,
        "rounds": rounds,
        "stopped": "all rounds done",
        "remarks": [],
    }
    (run.path / "summary.json").write_text(json.dumps(summary))

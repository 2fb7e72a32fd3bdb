"""Runs of a second, each of which keeps something else on disk; what campaigns disturb, and what should come of it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedstrata.core.machine.threads import one_thread
from fedstrata.runs.folder import Run
from fedstrata.runs.training import resume, train
from fedstrata.testing import tiny_federation
from fedstrata.testing.tiny import TINY

Overrides = Mapping[str, Any]
SHORT = {**TINY, "train.rounds": 3, "train.epochs": 1, "engine.workers": 1, "engine.vmap": "never"}
ON_DISK = {"method.name": "scaffold", "engine.client_state": "disk"}
MASKED = {"privacy.aggregate": "masked", "privacy.dp.noise": 1.0, "privacy.dp.where": "local"}
SUBJECTS: dict[str, Overrides] = {
    "fedavg": {},
    "scaffold, client state in memory": {"method.name": "scaffold"},
    "scaffold, client state on disk": ON_DISK,
    "fedcda, models of clients in files": {"method.name": "fedcda"},
    "flips with yogi": {"method.name": "flips", "method.server_step": "yogi"},
    "stratify-batch": {"method.name": "stratify-batch"},
    "masked sums with noise": {"method.combiner": "uniform", **MASKED},
}


def go(path: Path, overrides: Overrides) -> Run:
    """Begin a run, or go on with it where one was begun: what a user does after a crash."""
    federation = tiny_federation()
    with one_thread():
        if (path / "experiment.toml").exists():
            return resume(path, federation=federation, progress=False)
        return train(overrides={**SHORT, **overrides}, federation=federation, out=path, progress=False)


def outcome(path: Path) -> tuple[Any, ...]:
    """Return everything that two equal runs share."""
    run = Run.open(path)
    files = [sha256((path / name).read_bytes()).hexdigest() for name in ("model.safetensors", "best.safetensors")]
    told = {key: value for key, value in run.summary.items() if key in ("rounds", "accuracy", "stopped", "bytes_up")}
    return run.events(wall=False), files, told

"""What do fewer model transfers cost? Single-sample learning on digits: transfers of an epoch against accuracy.

Chunks alone, as in the paper's table V, and chunks whose entries may change places (`method.schedule.slack`). Labels
are skewed (Dirichlet 0.5, ten clients), or features: every client's digits look different, and one client holds 69 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from rich.progress import track

import fedstrata
from fedstrata import Stratified
from studies._looks import CLIENTS, looks

SETTINGS: list[dict[str, Any]] = [
    *({"chunk": chunk} for chunk in (1, 5, 50, 150)),
    {"chunk": 5, "slack": 1},
    *({"chunk": chunk, "slack": slack} for chunk in (50, 150) for slack in (1, 2, 5)),
    {"chunk": 150, "slack": 5, "pool": 30},
]


def main(arguments: Sequence[str]) -> int:
    """Train and tell."""
    parser = argparse.ArgumentParser(prog="python -m studies transfers", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--clients", default="weighted", help="method.schedule.clients")
    asked = parser.parse_args(arguments)
    for skew in ("labels", "features"):
        print(f"\nskewed {skew}, clients = {asked.clients}, {asked.epochs} epochs, {asked.seeds} seeds")
        print("chunk  slack  pool  transfers an epoch  fewer   accuracy")
        naive = 0.0
        for options, transfers, accuracies in frontier(skew, asked.clients, asked.seeds, asked.epochs):
            naive = naive or transfers
            plan = Stratified(**options)
            numbers = f"{plan.chunk:5} {plan.slack:6} {plan.pool:5} {transfers:19.0f} {1 - transfers / naive:6.0%}"
            spread = stdev(accuracies) if len(accuracies) > 1 else 0.0
            print(f"{numbers}   {mean(accuracies):.3f} +- {spread:.3f}", flush=True)
    return 0


def frontier(
    skew: str, clients: str, seeds: int, epochs: int, settings: Sequence[dict[str, Any]] = SETTINGS
) -> Iterator[tuple[dict[str, Any], float, list[float]]]:
    """Give each setting with its transfers of an epoch and the accuracy of every seed."""
    for options in track(settings, f"skewed {skew}", transient=True):
        runs = [_trained(skew, {"clients": clients, **options}, seed, epochs) for seed in range(seeds)]
        yield options, mean(run["client_updates"] for run in runs) / epochs, [run["accuracy"] for run in runs]


def _trained(skew: str, options: dict[str, Any], seed: int, epochs: int) -> dict[str, Any]:
    overrides: dict[str, Any] = {f"method.schedule.{name}": value for name, value in options.items()}
    overrides |= {"train.rounds": epochs, "train.seed": seed, "train.evaluate.every": epochs}
    if skew == "labels":
        overrides |= {"data.clients": CLIENTS, "data.partition": {"kind": "dirichlet-class", "alpha": 0.5}}
    else:
        overrides["train.lr"] = 0.03
    federation = looks() if skew == "features" else None
    with TemporaryDirectory() as folder:
        run = fedstrata.train(
            method="stratify-single", overrides=overrides, federation=federation, out=Path(folder) / "run"
        )
        return run.summary

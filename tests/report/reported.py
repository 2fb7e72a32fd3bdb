"""Runs that are reported of: small ones, and copies of them that a test may damage."""

from __future__ import annotations

from fedstrata import Run

SMALL = {"train.rounds": 4, "train.epochs": 1, "train.clients_per_round": 3, "model.hidden": (5,)}


def copied(run: Run, to) -> Run:
    to.mkdir()
    for name in ("experiment.toml", "events.jsonl", "summary.json"):
        (to / name).write_text((run.path / name).read_text())
    return Run(to)


def names(shown) -> list[str]:
    return [own.name for own in shown]

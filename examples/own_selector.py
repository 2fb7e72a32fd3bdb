"""Write a selector of your own: about twenty lines, and it combines with every other stage.

Run it with `python examples/own_selector.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import fedstrata
from fedstrata import Outcome, Scores, Selector, View


@dataclass
class Waiting:
    """The selector's memory; it is saved with every checkpoint."""

    rounds: np.ndarray  # since each client's last report


@dataclass(frozen=True)
class LongestWait(Selector):
    """The clients that have waited longest train; nobody is forgotten."""

    def init(self, view: View) -> Waiting:
        return Waiting(np.zeros(view.client_info.clients))

    def select(self, state: Waiting, view: View) -> list[int]:
        waited, tie = state.rounds[view.eligible], view.client_info.key[view.eligible]
        longest_first = np.lexsort((tie, -waited))
        chosen: list[int] = view.eligible[longest_first[: view.k]].tolist()
        return chosen

    def feedback(self, state: Waiting, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        state.rounds += 1
        state.rounds[[report.client for outcome in outcomes for report in outcome.reports]] = 0


if __name__ == "__main__":
    fedstrata.check_selector(LongestWait())  # unique, eligible, deterministic, resumable, survives lost reports
    for selector in ("random", LongestWait()):
        run = fedstrata.train(overrides={"method.selector": selector, "system.stragglers.rate": 0.2})
        print(f"{run.summary['accuracy']:.4f} accuracy, fairness {run.summary['jain']:.3f}: {run.path}")

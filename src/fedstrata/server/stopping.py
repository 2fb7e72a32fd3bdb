"""When to end a run before its last round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedstrata.server.accounting import Traffic

COARSE = 1.1  # what a last round may spend beyond a budget before it is said


@dataclass
class Progress:
    """What the rules remember: the best accuracy, and evaluations since."""

    best: float = -1.0
    since: int = 0


@dataclass(frozen=True)
class Stopping:
    """Rules to stop: accuracy reached, no progress, a majority of satisfied clients (FLIPS, section 2), a budget."""

    target: float | None = None
    patience: int | None = None
    vote: float | None = None
    bytes: int | None = None  # budgets, each spent by the first round that reaches it
    client_updates: int | None = None
    time: float | None = None  # virtual seconds
    last: tuple[int, str] | None = None  # a number of rounds, and why there are no more
    asked: Callable[[], str | None] = lambda: None  # whether somebody wants the run to end, and why

    def spent(self, rounds: int, traffic: Traffic, clock: float) -> str | None:
        """Say which budget is spent after so many rounds, or None; this is known before a round is judged."""
        if self.last is not None and rounds >= self.last[0]:
            return self.last[1]
        if asked := self.asked():
            return asked
        for name, (used, budget) in self.budgets(traffic, clock).items():
            if used >= budget:
                return f"budget: {name} {used:,.10g} of {budget:,.10g}"
        return None

    def budgets(self, traffic: Traffic, clock: float) -> dict[str, tuple[float, float]]:
        """Return what was used of each budget that is set, and the budget."""
        used = {"bytes": traffic.total_bytes, "client_updates": traffic.client_updates, "time": clock}
        return {name: (used[name], budget) for name in used if (budget := getattr(self, name)) is not None}

    def remarks(self, stopped: str | None, rounds: int, traffic: Traffic, clock: float) -> list[str]:
        """Say where a finished run is not one of equal budget: rounds that ended first, or were too coarse."""
        said = []
        for name, (used, budget) in self.budgets(traffic, clock).items():
            if stopped is None:
                said.append(
                    f"only {used:,.10g} of train.stop.{name} = {budget:,.10g} was spent: "
                    f"train.rounds = {rounds} came first; raise it"
                )
            elif used > COARSE * budget:
                said.append(
                    f"train.stop.{name} = {budget:,.10g} was overspent by {used / budget - 1:.0%}: its rounds are too "
                    "long for this budget"
                )
        return said

    def reason(self, progress: Progress, scores: Mapping[str, Any]) -> str | None:
        """Say why to stop after these scores, or None; without scores nothing counts."""
        if "accuracy" not in scores:
            return None
        accuracy = scores["accuracy"]
        better = accuracy > progress.best
        progress.best = max(progress.best, accuracy)
        progress.since = 0 if better else progress.since + 1
        if self.vote is not None:
            satisfied = scores.get("satisfied")
            if satisfied is not None and (satisfied > self.vote or satisfied == 1):
                return f"vote: {satisfied:.0%} of the clients reached {self.target} on their own test data"
        elif self.target is not None and accuracy >= self.target:
            return f"target: accuracy {accuracy:.4f} reached {self.target}"
        if self.patience is not None and progress.since >= self.patience:
            return f"patience: no accuracy above {progress.best:.4f} in {progress.since} evaluations"
        return None

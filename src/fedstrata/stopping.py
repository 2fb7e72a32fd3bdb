"""When to end a run before its last round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    last: tuple[int, str] | None = None  # a number of rounds, and why there are no more

    def reason(self, progress: Progress, scores: Mapping[str, Any], rounds: int = 0) -> str | None:
        """Say why to stop after these scores and so many rounds, or None; without scores, the others do not count."""
        if self.last is not None and rounds >= self.last[0]:
            return self.last[1]
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

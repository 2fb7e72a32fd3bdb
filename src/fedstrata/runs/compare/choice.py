"""What tuning came to for one row under one condition: the setting that was best on validation samples, and the cost.

A setting is as good as the mean of the metric over the seeds of its trials. Where two are equally good, such as where
none reaches an accuracy that is asked for, the higher accuracy decides, then which was named first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedstrata.runs.compare.cells import Cell
from fedstrata.runs.compare.rows import ACCURACY
from fedstrata.runs.compare.tune import Range, Setting, Values
from fedstrata.runs.metrics import Criterion

NEAR = 0.05  # of a range, from its end, that counts as its edge
COSTS = ("rounds", "client_updates", "bytes", "seconds")


@dataclass(frozen=True)
class Trial:
    """One setting, tried with every seed of the search."""

    setting: Setting
    cells: Sequence[Cell]

    @property
    def finished(self) -> bool:
        """Whether it can be compared with others."""
        return all(cell.state == "finished" for cell in self.cells)

    @property
    def ended(self) -> bool:
        """Whether it needs no more work."""
        return self.finished or any(cell.state in ("failed", "pruned") for cell in self.cells)

    def value(self, metric: Criterion) -> float | None:
        """Return the mean of a metric over the seeds; None where it was not measured."""
        told = [cell.outcome([metric])[metric.name] for cell in self.cells]
        return None if None in told else math.fsum(told) / len(told)


@dataclass(frozen=True)
class Choice:
    """The best setting of a row under a condition, or why there is none."""

    setting: Setting | None
    metric: str
    value: float | None = None  # of the metric, on validation samples
    trials: int = 0
    pruned: int = 0
    failed: int = 0
    cost: Mapping[str, float] = field(default_factory=dict)
    edges: Sequence[str] = ()  # keys whose best value is the outermost that was tried, in words
    equals: int = 1  # settings that are as good as the best, which is the first of them

    def to_json(self) -> dict[str, Any]:
        """Return a plain table."""
        counts = {"trials": self.trials, "pruned": self.pruned, "failed": self.failed}
        setting = None if self.setting is None else dict(self.setting)
        return {
            "set": setting,
            "metric": self.metric,
            "validation": self.value,
            **counts,
            **self.cost,
            "edges": list(self.edges),
            "equals": self.equals,
        }


def choose(trials: Sequence[Trial], space: Mapping[str, Values], metric: Criterion) -> Choice:
    """Choose among trials that have ended."""
    ranked = []
    for at, trial in enumerate(trials):
        if trial.finished and (value := trial.value(metric)) is not None and not math.isnan(value):
            ranked.append(((-value if not metric.lower else value, -(trial.value(ACCURACY) or 0.0), at), value, trial))
    states = [{cell.state for cell in trial.cells} for trial in trials]
    pruned, failed = (sum(state in own for own in states) for state in ("pruned", "failed"))
    cells = {cell.path: cell for trial in trials for cell in trial.cells}  # a setting may have been suggested twice
    counts = len(trials), pruned, failed, total([cost_of(cell) for cell in cells.values()])
    if not ranked:
        return Choice(None, metric.name, None, *counts)
    rank, value, best = min(ranked, key=lambda one: one[0])
    equal = {repr(sorted(trial.setting.items())) for other, _, trial in ranked if other[:-1] == rank[:-1]}
    edges = [said for key, tried in space.items() if (said := _edge(key, best.setting[key], tried))]
    return Choice(best.setting, metric.name, value, *counts, edges if len(equal) == 1 else (), len(equal))


def cost_of(cell: Cell) -> dict[str, float]:
    """Return what a cell has spent, also one that was stopped."""
    if not (cell.path / "events.jsonl").exists():
        return dict.fromkeys(COSTS, 0)
    if done := cell.run.summary:
        spent, rounds, seconds = done, done["rounds"], done["seconds"]
    else:
        last = next((event for event in reversed(cell.run.events()) if event["event"] == "round"), None)
        if last is None:
            return dict.fromkeys(COSTS, 0)
        spent, rounds, seconds = last, last["round"], last["wall"]["seconds"]
    total_bytes = spent["bytes_up"] + spent["bytes_down"] + spent["bytes_p2p"]
    return dict(zip(COSTS, (rounds, spent["client_updates"], total_bytes, seconds), strict=True))


def total(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Add up what was spent."""
    return {name: round(sum(cost[name] for cost in costs), 3) for name in COSTS}


def _edge(key: str, value: Any, tried: Values) -> str | None:
    """Say where the best lies at the edge of what was tried, so that better may lie beyond."""
    ends: tuple[Any, Any]
    if isinstance(tried, Range):
        ends, scale = (tried.low, tried.high), math.log if tried.log else float
        place = (scale(value) - scale(tried.low)) / (scale(tried.high) - scale(tried.low))
        outermost = not NEAR < place < 1 - NEAR
    elif all(isinstance(one, int | float) and not isinstance(one, bool) for one in tried):
        ends = min(tried), max(tried)
        outermost = value in ends
    else:
        return None
    return f"{key} = {value:g}, the best, is at the edge of what was tried, {ends[0]:g} to {ends[1]:g}" * outermost

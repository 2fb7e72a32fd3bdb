"""A table figure by figure: what the paper printed, ours with its interval, how far apart they are."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedstrata.reproduce.results import Results
from fedstrata.runs.compare.paired import interval
from fedstrata.runs.folder import finite

POINT = 0.01  # how far from the paper's figure ours may be, or two of the paper's standard deviations
HOLDS, DIFFERS, OPEN = "holds", "differs", "open"


@dataclass(frozen=True)
class Figure:
    """One row under one condition, by one metric: shares as shares, rounds as rounds.

    Attributes
    ----------
    paper, mean
        As printed, and ours in the mean over seeds; None where there is none. What was never reached is infinite.
    low, high
        The 95 % interval of ours, from two seeds on.
    verdict
        "holds" where all of the interval is within a point, or two of its standard deviations, of the paper's figure;
        "differs" where none of it is; else "open". It is "" for rounds and where the paper prints nothing.
    """

    setting: str
    method: str
    metric: str
    paper: float | None
    mean: float | None
    low: float | None
    high: float | None
    seeds: int
    verdict: str

    @property
    def difference(self) -> float | None:
        """Ours less the paper's; None where either is missing."""
        known = None not in (self.paper, self.mean)
        apart = (self.mean or 0.0) - (self.paper or 0.0) if known else math.nan
        return apart if math.isfinite(apart) else None

    def to_json(self) -> dict[str, Any]:
        """Return what `fedstrata reproduce show --json` tells."""
        told: dict[str, Any] = finite({**asdict(self), "difference": self.difference})
        return told


def figures_of(results: Results, name: str) -> list[Figure]:
    """Return a metric of a table, condition by condition."""
    table = results.table
    return [figure_of(results, name, row, condition) for condition in table.conditions for row in table.rows]


def figure_of(results: Results, name: str, row: str, condition: str) -> Figure:
    """Return one of them."""
    table, metric = results.table, results.table.metrics[name]
    values = list(results.values(metric, row, condition).values())
    found = interval(values)
    mean = math.inf if values and found["mean"] is None else found["mean"]
    low, high = found["interval"] or (None, None)
    printed = table.figure(name, row, condition)
    paper = None if math.isnan(printed) else printed
    verdict = ""
    if paper is not None and not metric.lower:
        deviation = table.deviation(name, row, condition)
        verdict = _judge(paper, low, high, max(POINT, 0.0 if math.isnan(deviation) else 2 * deviation))
    return Figure(condition, row, name, paper, mean, low, high, len(values), verdict)


def costs_of(results: Results, name: str) -> list[dict[str, Any]]:
    """Return what runs took, by condition and row: as printed, as measured, and both in times the first row's.

    Units and machines differ, so the last two are what can be compared. What is not known is None.
    """
    table, printed = results.table, results.table.costs[name]
    first, told = next(iter(printed)), list[dict[str, Any]]()
    for at, condition in enumerate(table.conditions):
        for row, values in printed.items():
            costs = {"paper": values[at], "ours": results.cost(name, row, condition)}
            base = {"paper": printed[first][at], "ours": results.cost(name, first, condition)}
            shares = {f"{key}_in_times": _in_times(own, base[key]) for key, own in costs.items()}
            told.append(finite({"setting": condition, "method": row, "cost": name, "first": first, **costs, **shares}))
    return told


def _in_times(own: float | None, first: float | None) -> float | None:
    return None if own is None or not first else own / first


def departures(results: Results) -> tuple[float, float] | None:
    """Return how far from the paper's figures the two sides of its primary contrast are, in the mean over conditions.

    A contrast may fail because the paper's own method does worse than printed, or because its baselines do better. None
    where figures of one side are missing.
    """
    table = results.table
    against = {at: row for at in table.conditions if (row := table.baseline(at)) is not None}
    sides = [dict.fromkeys(against, table.method), against]
    found = [[figure_of(results, table.metric, row, at).difference for at, row in side.items()] for side in sides]
    known = [[gap for gap in gaps if gap is not None] for gaps in found]
    if not all(known) or table.base is not None:
        return None
    own, others = (sum(gaps) / len(gaps) for gaps in known)
    return own, others


def _judge(paper: float, low: float | None, high: float | None, room: float) -> str:
    if low is None or high is None:
        return OPEN
    if paper - room <= low and high <= paper + room:
        return HOLDS
    return DIFFERS if high < paper - room or low > paper + room else OPEN

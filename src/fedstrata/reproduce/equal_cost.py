"""A method of ours and the paper's own at the same price: as many client updates, or as many bytes.

A run that took more is cut where it had spent what the other took in all. Accuracy is the mean of the last ten
evaluations until then, whichever figure the table prints: no other is kept along every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedstrata.reproduce.results import Results, spent
from fedstrata.reproduce.verdict import beside_word
from fedstrata.runs.compare.paired import difference
from fedstrata.runs.metrics import LAST

PRICES = {"client_updates": "client updates", "bytes": "bytes"}
AT_THE_END = f"accuracy_last{LAST}"


@dataclass(frozen=True)
class AtEqualCost:
    """Ours less the paper's own, paired over the seeds of all conditions."""

    price: str  # one of PRICES
    share: float | None  # what ours took of what the paper's own took, in the mean; None: there is no pair of runs
    mean: float | None  # None also where a run that is cut was not evaluated early enough
    interval: tuple[float, float] | None
    word: str


def at_equal_costs(results: Results) -> Iterator[AtEqualCost]:
    """Compare a method that was run beside a table, by one price after the other."""
    pairs, seeds = list(_pairs(results)), _seeds(results)
    for price in PRICES if results.base is not None else ():
        ours, theirs, shares = list[float](), list[float](), list[float]()
        for every, own, other in pairs:
            prices = [spent(entry["costs"], price) for entry in (own, other)]
            shares.append(prices[0] / prices[1] if prices[1] else 1.0)
            both = [accuracy_at(entry, price, min(prices), every) for entry in (own, other)]
            if both[0] is not None and both[1] is not None:
                ours.append(both[0])
                theirs.append(both[1])
        found: dict[str, Any] = {"mean": None, "interval": None}
        if pairs and len(ours) == len(pairs):  # a pair that is left out is not left out at random
            found = difference(ours, theirs)
        ends = found["interval"]
        low_high = None if ends is None else (ends[0], ends[1])
        share = sum(shares) / len(shares) if shares else None
        yield AtEqualCost(price, share, found["mean"], low_high, beside_word(low_high, seeds))


def accuracy_at(entry: Mapping[str, Any], price: str, budget: float, every: int) -> float | None:
    """Return how accurate a run was when it had spent so much, evaluated every so many rounds; None: not known."""
    total, rounds = spent(entry["costs"], price), entry["costs"]["rounds"]
    if total <= budget:
        return float(entry["figures"][AT_THE_END])
    kept = [(point[0], point[1], _spent_at(point, price, total, rounds)) for point in entry["curve"]]
    within = [point for point in kept if point[2] <= budget]
    if not within:
        return None
    values = [float(accuracy) for round, accuracy, _ in within if round > within[-1][0] - LAST * every]
    return sum(values) / len(values)


def _spent_at(point: list[float], price: str, total: float, rounds: int) -> float:
    """Return what a run had spent at a point of its curve; earlier versions did not keep that: evenly over rounds."""
    kept = dict(zip(PRICES, point[2:], strict=False))
    return kept.get(price, total * point[0] / rounds)


def _pairs(results: Results) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    table, base = results.table, results.base
    if base is None:
        return
    others = base.runs
    for (condition, _, seed), own in sorted(results.runs.items()):
        other = others.get((condition, base.table.method, seed))
        if other is not None:
            yield int(table.settings(condition, table.method).get("train.evaluate.every", 1)), own, other


def _seeds(results: Results) -> int:
    """Return the pairs of the condition that has the fewest."""
    if results.base is None:
        return 0
    both = {(condition, seed) for condition, method, seed in results.base.runs if method == results.base.table.method}
    both &= {(condition, seed) for condition, _, seed in results.runs}
    return min(sum(at == condition for at, _ in both) for condition in results.table.conditions)

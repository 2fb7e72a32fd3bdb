"""Many methods under many conditions: Friedman's test, and Nemenyi's critical difference of mean ranks.

Methods are ranked within each condition, so that conditions of any difficulty count alike. Friedman's test asks whether
mean ranks differ more than those of equals would; if so, Nemenyi's test says which: two methods whose mean ranks are
closer than the critical difference cannot be told apart (Demsar, JMLR 2006). Conditions are taken for independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isnan, sqrt
from typing import Any

import numpy as np

from fedstrata.runs.compare.paired import ranks

LEVEL = 0.05
FEW = 10  # conditions, and
SMALL = 5  # methods, up to which chi-square is a rough guide to Friedman's statistic


@dataclass(frozen=True)
class Friedman:
    """What the ranks of methods over conditions tell."""

    metric: str
    conditions: int
    ranks: dict[str, float]  # mean over conditions, the best first
    statistic: float  # chi-square, corrected for ties
    p: float
    critical_difference: float  # of mean ranks, by Nemenyi at 0.05
    alike: list[list[str]]  # methods that cannot be told apart, as many together as can be

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Friedman:
        """Undo `to_json`."""
        return cls(**told)

    def describe(self) -> list[str]:
        """Say in sentences what it tells, and what it does not."""
        places = ", ".join(f"{method} {rank:.2f}" for method, rank in self.ranks.items())
        told = f"mean ranks over {self.conditions} conditions, by {self.metric}: {places}"
        test = f"Friedman: chi-square {self.statistic:.2f}, p {self.p:.3g}"
        if self.p >= LEVEL:
            return [told, f"{test}: the methods cannot be told apart"]
        groups = "; ".join(" and ".join(group) for group in self.alike)
        apart = f"ranks closer than {self.critical_difference:.2f} cannot be told apart (Nemenyi)"
        return [told, f"{test}; {apart}: {groups or 'none are'}"]


def friedman(metric: str, table: Mapping[str, Sequence[float]], lower: bool = False) -> Friedman | None:
    """Test methods, each with a value for every condition; None for one method, or one condition."""
    conditions = len(next(iter(table.values()), ()))
    if len(table) < 2 or conditions < 2:
        return None
    placed = np.array(list(ranks(table, lower).values()))
    means = dict(sorted(zip(table, placed.mean(axis=1).tolist(), strict=True), key=lambda own: own[1]))
    statistic = chi_square(placed)
    critical = critical_difference(len(table), conditions)
    p = _tail(statistic, len(table))
    return Friedman(metric, conditions, means, statistic, p, critical, alike(means, critical))


def chi_square(placed: np.ndarray) -> float:
    """Return Friedman's statistic of ranks [methods, conditions], corrected for ties; 0 where all are tied."""
    k, n = placed.shape
    middle = (k + 1) / 2
    between = n * n * ((placed.mean(axis=1) - middle) ** 2).sum()
    within = ((placed - middle) ** 2).sum()  # n k (k^2 - 1) / 12 without ties
    return float((k - 1) * between / within) if within else 0.0


def critical_difference(methods: int, conditions: int, level: float = LEVEL) -> float:
    """Return by how much mean ranks must differ: q sqrt(k (k + 1) / 6 n), q a studentized range over sqrt 2."""
    from scipy.stats import studentized_range  # noqa: PLC0415  takes a while to import

    q = float(studentized_range.ppf(1 - level, methods, inf)) / sqrt(2)
    return q * sqrt(methods * (methods + 1) / (6 * conditions))


def alike(means: Mapping[str, float], critical: float) -> list[list[str]]:
    """Group methods, sorted by mean rank, whose ranks are closer than the critical difference; largest groups only."""
    names, places = list(means), list(means.values())
    groups, reached = [], 0
    for first in range(len(names)):
        end = first + 1
        while end < len(names) and places[end] - places[first] < critical:
            end += 1
        if end - first > 1 and end > reached:
            groups.append(names[first:end])
        reached = max(reached, end)
    return groups


def caution(tested: Friedman) -> list[str]:
    """Say where the test is a rough guide."""
    if tested.conditions <= FEW and len(tested.ranks) <= SMALL:
        return [f"Friedman's p over {tested.conditions} conditions is rough; it takes about {FEW} or more"]
    return []


def _tail(statistic: float, methods: int) -> float:
    from scipy.stats import chi2  # noqa: PLC0415  takes a while to import

    p = float(chi2.sf(statistic, methods - 1))
    return 1.0 if isnan(p) else p

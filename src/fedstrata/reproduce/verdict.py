"""Verdicts by rule.

* *holds*: for every figure that the paper prints of the primary contrast, our whole 95 % interval lies within the
  larger of 1 point and 2 of the paper's standard deviations of it.
* *holds in order*: the primary contrast, the paper's method less its strongest printed baseline, paired over at least
  six seeds in every condition, is above 0 with p < 0.05: a sign-flip test over all pairs, corrected by Holm for the
  primary contrasts of all tables of the paper.
* *holds in order, not in size*: likewise, but the upper end of the paired interval is below half the gain that the
  paper prints.
* *does not hold*: neither, and the upper end of the paired interval is below 0, or below half the gain that the paper
  prints.
* *open*: anything else; so also while runs are missing. A table without a contrast holds by its figures or is open.
* *not comparable*: the file says why.

A method of ours that is run beside a table (`--with`) is, against the paper's own: *better*, where the whole
interval is above 0; *not inferior*, above -1 point; *worse*, below 0; else *open*, likewise over six seeds. No Holm:
the paper claims nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedstrata.reproduce.figures import HOLDS, OPEN, POINT, figure_of
from fedstrata.reproduce.results import Results
from fedstrata.runs.compare.paired import difference, holm

SEEDS = 6  # least, in every condition
LEVEL = 0.05

IN_ORDER, SMALLER = "holds in order", "holds in order, not in size"
FAILS, OTHER = "does not hold", "not comparable"
BETTER, NOT_INFERIOR, WORSE = "better", "not inferior", "worse"


@dataclass(frozen=True)
class Contrast:
    """The primary contrast of a table, over all conditions: positive where the paper's method is better."""

    mean: float | None
    interval: tuple[float, float] | None
    p: float | None
    claimed: float | None  # the gain that the paper prints, in the mean over conditions
    seeds: int  # pairs, in the condition that has the fewest
    wanted: int


@dataclass(frozen=True)
class Verdict:
    """What our runs say of a table."""

    word: str
    contrast: Contrast
    p_holm: float | None = None


def judge(results: Mapping[str, Results]) -> dict[str, Verdict]:
    """Judge the tables of one paper together, by id."""
    contrasts = {name: contrast(own) for name, own in results.items()}
    whole = {name: c for name, c in contrasts.items() if c.seeds >= SEEDS and results[name].table.base is None}
    corrected = dict(zip(whole, holm([c.p for c in whole.values()]), strict=True))
    return {
        name: Verdict(_word(results[name], c, corrected.get(name)), c, corrected.get(name))
        for name, c in contrasts.items()
    }


def contrast(results: Results) -> Contrast:
    """Compare the paper's method with the strongest printed baseline, seed by seed, in every condition."""
    table, name = results.table, results.table.metric
    metric = table.metrics[name]
    sign = -1.0 if metric.lower else 1.0
    ours, theirs, claimed, seeds = list[float](), list[float](), list[float](), list[int]()
    for condition in table.conditions:
        baseline = table.baseline(condition)
        if baseline is None:
            continue
        own, other = (results.values(metric, row, condition) for row in (table.method, baseline))
        both = sorted(own.keys() & other.keys())
        seeds.append(len(both))
        ours += [sign * own[seed] for seed in both]
        theirs += [sign * other[seed] for seed in both]
        gain = sign * (table.figure(name, table.method, condition) - table.figure(name, baseline, condition))
        claimed.append(gain)
    found: dict[str, Any] = difference(ours, theirs) if ours else {"mean": None, "interval": None, "p": None}
    ends = found["interval"]
    known = [gain for gain in claimed if math.isfinite(gain)]
    return Contrast(
        found["mean"],
        None if ends is None else (ends[0], ends[1]),
        found["p"],
        sum(known) / len(known) if known else None,
        min(seeds, default=0),
        max(table.seeds, SEEDS),
    )


def _word(results: Results, c: Contrast, p_holm: float | None) -> str:
    if results.table.not_comparable:
        return OTHER
    table = results.table
    if table.base is not None:
        return _beside(c)
    against = {at: table.baseline(at) for at in table.conditions}
    rows = [(row, at) for at, baseline in against.items() for row in (table.method, baseline) if row is not None]
    same = all(figure_of(results, table.metric, row, at).verdict == HOLDS for row, at in rows)
    if not any(against.values()):  # a table whose claim is its figures
        return HOLDS if same and not any(map(table.primary, results.missing())) else OPEN
    if c.seeds < SEEDS or c.mean is None or c.interval is None:
        return OPEN
    if same:
        return HOLDS
    upper = c.interval[1]
    small = c.claimed is not None and c.claimed > 0 and upper < c.claimed / 2
    if c.mean > 0 and p_holm is not None and p_holm < LEVEL:
        return SMALLER if small else IN_ORDER
    return FAILS if upper < 0 or small else OPEN


def _beside(c: Contrast) -> str:
    if c.seeds < SEEDS or c.interval is None:
        return OPEN
    lower, upper = c.interval
    if lower > -POINT:
        return BETTER if lower > 0 else NOT_INFERIOR
    return WORSE if upper < 0 else OPEN

"""Verdicts by rule.

* *holds*: for every figure that the paper prints of the primary contrast, our whole 95 % interval lies within the
  larger of 1 point and 2 of the paper's standard deviations of it.
* *holds in order*: the primary contrast, the paper's method less its strongest printed baseline, paired over at least
  six seeds in every condition, is above 0 with p < 0.05: a sign-flip test over all pairs, corrected by Holm for the
  primary contrasts of all tables of the paper. Those that were not run yet count as p = 1; a reading stands in the
  place of its table.
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
    conditions: tuple[int, int] = (0, 0)  # how many have pairs, of how many
    claimed_there: float | None = None  # the gain that the paper prints under those that have
    pairs: int = 0  # over all conditions


@dataclass(frozen=True)
class Verdict:
    """What our runs say of a table."""

    word: str
    contrast: Contrast
    p_holm: float | None = None


def judge(results: Mapping[str, Results]) -> dict[str, Verdict]:
    """Judge the tables of one paper together, by id."""
    contrasts = {name: contrast(own) for name, own in results.items()}
    family = {
        own.table.id: 1.0 if (p := _whole_p(contrasts[name])) is None else p
        for name, own in results.items()
        if not own.table.reading and own.table.base is None and own.table.contrasted
    }
    verdicts = {}
    for name, own in results.items():
        p = None if own.table.base is not None else _whole_p(contrasts[name])
        corrected = None if p is None else holm_among(p, {**family, own.table.file_id: p})
        verdicts[name] = Verdict(_word(own, contrasts[name], corrected), contrasts[name], corrected)
    return verdicts


def _whole_p(c: Contrast) -> float | None:
    """Return the p of a contrast that has all its seeds."""
    return c.p if c.seeds >= SEEDS else None


def holm_among(p: float, family: Mapping[str, float]) -> float | None:
    """Correct one of the p-values of a family."""
    ps = list(family.values())
    return holm(ps)[ps.index(p)]  # equal ones are corrected alike


def contrast(results: Results) -> Contrast:
    """Compare the paper's method with the strongest printed baseline, seed by seed, in every condition."""
    table, name = results.table, results.table.metric
    metric = table.metrics[name]
    sign = -1.0 if metric.lower else 1.0
    ours, theirs, claimed, seeds = list[float](), list[float](), list[float](), list[int]()
    there = list[float]()  # what is claimed where there are pairs
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
        there += [gain] if both else []
    found: dict[str, Any] = difference(ours, theirs) if ours else {"mean": None}
    tested = max(seeds, default=0) > 1  # several conditions with a seed each tell how they differ, not how sure it is
    return Contrast(
        found["mean"],
        _ends(found["interval"]) if tested else None,
        found["p"] if tested else None,
        _mean(claimed),
        min(seeds, default=0),
        max(table.seeds, SEEDS),
        (sum(pairs > 0 for pairs in seeds), len(seeds)),
        _mean(there),
        len(ours),
    )


def _ends(interval: list[float] | None) -> tuple[float, float] | None:
    return None if interval is None else (interval[0], interval[1])


def _mean(gains: list[float]) -> float | None:
    """Return the mean of those that are known and finite."""
    known = [gain for gain in gains if math.isfinite(gain)]
    return sum(known) / len(known) if known else None


def _word(results: Results, c: Contrast, p_holm: float | None) -> str:
    if results.table.not_comparable:
        return OTHER
    table = results.table
    if table.base is not None:
        return beside_word(c.interval, c.seeds)
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


def beside_word(interval: tuple[float, float] | None, seeds: int) -> str:
    """Say how a method of ours does against the paper's own, by the interval of their difference."""
    if seeds < SEEDS or interval is None:
        return OPEN
    lower, upper = interval
    if lower > -POINT:
        return BETTER if lower > 0 else NOT_INFERIOR
    return WORSE if upper < 0 else OPEN


def passes(word: str) -> bool:
    """Whether a method of ours is better than the paper's own, or not inferior."""
    return word in (BETTER, NOT_INFERIOR)

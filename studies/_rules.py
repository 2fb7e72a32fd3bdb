"""Rules fitted to runs: a tree of few questions about a federation, in whose leaves stands the method that lost least.

What a method loses is its distance to the best method on the same federation, at equal bytes. Questions are asked
greedily, each where it lowers the mean loss most; the tree is tested on whole data sets that the fit did not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from fedstrata.inspection.measured import WORDS, ask
from studies._grid import by_place, figure

DEPTH = 2  # questions in a row
LEAST = 6  # federations in a leaf
WORTH = 0.004  # of accuracy, in the mean over all federations, that a question must save


@dataclass(frozen=True)
class Case:
    """A federation: where it is from, what is measured of it, and what each method reached and lost there."""

    data: str
    condition: str
    seed: int
    figures: Mapping[str, float]
    accuracy: Mapping[str, float]
    loss: Mapping[str, float]


def cases(lines: Sequence[Mapping[str, Any]], methods: Sequence[str], share: float = 1.0) -> list[Case]:
    """Return the federations on which every method of the study was trained, at a share of the bytes."""
    found = []
    for place, own in by_place(lines):
        if own.keys() >= set(methods):
            reached = {row: figure(own[row], share, "bytes") for row in methods}
            best = max(reached.values())
            lost = {row: best - value for row, value in reached.items()}
            found.append(Case(*place, next(iter(own.values()))["measured"], reached, lost))
    return found


def fit(known: Sequence[Case], methods: Sequence[str], depth: int = DEPTH, of: int | None = None) -> dict[str, Any]:
    """Fit a tree; `of` is how many federations there are in all."""
    total = of or len(known)
    recipe, loss = _best(known, methods)
    leaf = {"recipe": recipe, "loss": loss, "fedavg": _mean(known, "fedavg"), "federations": len(known)}
    splits = list(_splits(known, methods)) if depth else []
    if not splits:
        return leaf
    gain, name, at = max(splits)
    if (gain / total) < WORTH:
        return leaf
    below = [case for case in known if case.figures[name] <= at]
    above = [case for case in known if case.figures[name] > at]
    sides = {"below": fit(below, methods, depth - 1, total), "above": fit(above, methods, depth - 1, total)}
    return {"figure": name, "at": at, **sides}


def advised(tree: Mapping[str, Any], case: Case) -> float:
    """Return what following the tree loses on a federation."""
    return case.loss[ask(tree, case.figures).recipe]


def _splits(known: Sequence[Case], methods: Sequence[str]) -> Iterator[tuple[float, str, float]]:
    """Return every question with what it saves, summed over the federations."""
    whole = _best(known, methods)[1] * len(known)
    for name in WORDS:
        values = np.unique([round(case.figures[name], 6) for case in known])
        for low, high in pairwise(values):
            at = float(f"{(low + high) / 2:.3g}")
            sides = [[case for case in known if (case.figures[name] <= at) is side] for side in (True, False)]
            if min(map(len, sides)) >= LEAST:
                yield whole - sum(_best(side, methods)[1] * len(side) for side in sides), name, at


def _best(known: Sequence[Case], methods: Sequence[str]) -> tuple[str, float]:
    means = {name: _mean(known, name) for name in methods}
    best = min(means, key=lambda name: means[name])
    return best, means[best]


def _mean(known: Sequence[Case], method: str) -> float:
    return round(fmean(case.loss[method] for case in known), 5)

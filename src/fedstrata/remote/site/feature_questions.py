"""Which questions about its features a site answers in a run: those of one scale and one search for medians.

Sums over whatever is asked for would be an oracle: who may count how many values lie below any threshold, reads a
column value by value. So each kind of question is answered as often as it takes (`data/statistics.py`), and thresholds
must be those of a search that narrows down: every question divides the interval that the one before it chose.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedstrata.data.statistics import BITS, Kind, Question
from fedstrata.privacy.frames import RefusedError

STEPS = 64 // BITS  # questions that a median takes
MOST: dict[Kind, int] = {"sums": 1, "squares": 1, "values": 1, "below": STEPS}


@dataclass
class FeatureQuestions:
    """What was asked in one run."""

    asked: dict[Kind, int] = field(default_factory=dict)
    found: np.ndarray | None = None  # where the search stands: the beginning of an interval for every rank

    def check(self, question: Question, columns: int) -> None:
        """Take note of a question, or refuse it."""
        times = self.asked.get(question.kind, 0)
        if times >= MOST[question.kind]:
            raise RefusedError(f"it was asked for {question.kind} of its features before, as often as a run needs them")
        if question.kind == "below":
            self.found = self._narrowed(question.numbers, columns, times)
        self.asked[question.kind] = times + 1

    def _narrowed(self, thresholds: np.ndarray | None, columns: int, times: int) -> np.ndarray:
        shift = np.uint64(64 - BITS * (times + 1))
        steps = np.arange(1, 1 << BITS, dtype=np.uint64) << shift
        if thresholds is None or thresholds.shape != (2 * columns, len(steps)):
            raise RefusedError("a search for medians has two ranks a column")
        found: np.ndarray = thresholds[:, 0] - steps[0]
        digits, inside = found >> shift, found - (np.zeros_like(found) if self.found is None else self.found)
        divides = (thresholds == found[:, None] + steps).all() and (found == digits << shift).all()
        whole = (digits & np.uint64((1 << BITS) - 1) == 0).all()  # where it begins, the one before has said
        chosen = (inside == 0).all() if self.found is None else _within(inside, int(shift) + BITS)
        if not (divides and whole and chosen):
            raise RefusedError("thresholds are not those of a search for medians")
        return found


def _within(inside: np.ndarray, shift: int) -> bool:
    """Say whether intervals lie inside those of the question before, which were so many bits wide in all."""
    return bool((inside >> np.uint64(shift) < 1 << BITS).all())

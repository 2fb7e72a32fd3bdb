"""The step size by time: a base rate under a schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from fedstrata.core.contract import broken, describe
from fedstrata.core.messages import WHOLE, Fragment
from fedstrata.core.part import Part


class LRSchedule(Part):
    """A factor on the clients' step size `train.lr`, by time.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class WarmUp(fedstrata.LRSchedule):
    ...     '''The rate grows over the first rounds.'''
    ...
    ...     over: fedstrata.options.Count = 5
    ...
    ...     def factor(self, round, rounds, unit=1.0):
    ...         return min(1.0, (round + unit) / self.over)
    >>> [WarmUp(4).factor(round, rounds=50) for round in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    >>> run = fedstrata.train(overrides={"train.lr_schedule": WarmUp(), "train.rounds": 1})
    """

    def factor(self, round: float, rounds: int, unit: float = 1.0) -> float:
        """Return the factor at a time.

        Parameters
        ----------
        round
            The time in rounds, from 0; a fraction where a round has several steps.
        rounds
            How many the run has.
        unit
            The time between two steps of the schedule.

        Returns
        -------
        float
        """
        return 1.0


@dataclass(frozen=True)
class LearningRate:
    """Step size by time: a base rate under a schedule."""

    base: float
    schedule: LRSchedule
    rounds: int

    def at(self, round: int, part: Fragment = WHOLE) -> float:
        """Return the step size of a round, or of one of its equal parts."""
        place, parts = part
        factor: float = self.schedule.factor(round + place / parts, self.rounds, 1 / parts)
        if not isinstance(factor, Real) or not math.isfinite(factor) or factor < 0:
            allowed = "a finite number from 0, by which train.lr is multiplied"
            raise broken(self.schedule, "factor", f"gave {describe(factor)} in round {round + 1}; allowed: {allowed}")
        return self.base * factor

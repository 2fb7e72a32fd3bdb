"""Learning-rate schedules: a factor on `train.lr` by round, or by part of a round where one has many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedstrata.core.client_parts import LRSchedule
from fedstrata.core.options import Count, Fraction, Natural, Positive

PARTS = {
    "constant": "fedstrata.methods.lr_schedules:Constant",
    "step": "fedstrata.methods.lr_schedules:StepDecay",
    "cosine": "fedstrata.methods.lr_schedules:Cosine",
    "one-cycle": "fedstrata.methods.lr_schedules:OneCycle",
}


@dataclass(frozen=True)
class Constant(LRSchedule):
    """The same rate in every round."""


@dataclass(frozen=True)
class StepDecay(LRSchedule):
    """The rate is multiplied by `by` every `every` rounds."""

    every: Count = 10
    by: Positive = 0.5

    def factor(self, round: float, rounds: int, unit: float = 1.0) -> float:
        """Decay in steps."""
        return float(self.by ** int(round / self.every + 1e-9))


@dataclass(frozen=True)
class Cosine(LRSchedule):
    """The rate falls along half a cosine to the share `floor`, after `warmup` rounds of linear growth."""

    floor: Fraction = 0.0
    warmup: Natural = 0

    def factor(self, round: float, rounds: int, unit: float = 1.0) -> float:
        """Fall from 1 to the floor."""
        if round < self.warmup:
            return (round + unit) / self.warmup
        share = (round - self.warmup) / max(rounds - self.warmup, 1)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class OneCycle(LRSchedule):
    """The rate climbs linearly from `start` to 1 at the share `peak` of the run, then falls to `end`."""

    peak: Fraction = 0.3
    start: Fraction = 0.04
    end: Fraction = 0.01

    def factor(self, round: float, rounds: int, unit: float = 1.0) -> float:
        """Climb, then fall."""
        share = round / max(rounds - unit, unit)
        if share <= self.peak and self.peak > 0:
            return self.start + (1 - self.start) * share / self.peak
        return 1 + (self.end - 1) * (share - self.peak) / max(1 - self.peak, 1e-12)

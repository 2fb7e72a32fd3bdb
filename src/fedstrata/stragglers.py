"""FLIPS, section 4: a share of the selected clients trains, and reports too late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedstrata.messages import Report
from fedstrata.options import Fraction
from fedstrata.serverside import Step, System, View


@dataclass(frozen=True)
class Stragglers(System):
    """Loses round(rate * selected) reports of a training step, at random; never all of them unless rate is 1."""

    paper: ClassVar[str] = "FLIPS, 2023"

    rate: Fraction = 0.0
    mode: Literal["uniform"] = "uniform"

    @property
    def reliable(self) -> bool:
        """Whether nobody is late."""
        return self.rate == 0

    def lost(self, view: View, turn: int, step: Step, reports: Sequence[Report]) -> set[int]:
        """Draw who is late."""
        if not self.rate or not step.combine or not reports:
            return set()
        if "peer" in (step.source, step.sink):  # a chain asks one client at a time: each is late by itself
            late = view.rng("stragglers", step=turn).random() < self.rate
            return {r.client for r in reports} if late else set()
        most = len(reports) if self.rate == 1 else len(reports) - 1
        count = min(round(self.rate * len(reports)), most)
        clients = [r.client for r in reports]
        return set(view.rng("stragglers", step=turn).choice(clients, count, replace=False).tolist())

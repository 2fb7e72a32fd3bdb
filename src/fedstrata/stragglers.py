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
    """Loses round(rate * selected) reports of a training step, at random; never all of them unless rate is 1.

    Where a round has many steps, who is late is drawn once a round, out of everybody.
    """

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
        if step.part[1] > 1:
            clients = view.eligible.tolist()
            slow = view.rng("stragglers").choice(clients, self._count(len(clients)), replace=False)
            return {r.client for r in reports} & set(slow.tolist())
        if "peer" in (step.source, step.sink):  # a chain asks one client at a time: each is late by itself
            late = view.rng("stragglers", step=turn).random() < self.rate
            return {r.client for r in reports} if late else set()
        clients = [r.client for r in reports]
        return set(view.rng("stragglers", step=turn).choice(clients, self._count(len(clients)), replace=False).tolist())

    def _count(self, clients: int) -> int:
        return min(round(self.rate * clients), clients if self.rate == 1 else clients - 1)

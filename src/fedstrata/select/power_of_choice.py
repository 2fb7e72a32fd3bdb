"""Cho et al., Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022.

Draws d candidates by size, asks each for the loss of the current model on its data, and trains the k with the
highest loss. The probe costs d model downloads, which are charged.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from fedstrata.clientside import Done, Program, Visit
from fedstrata.options import Natural
from fedstrata.select.size import draw_by_size
from fedstrata.serverside import Ask, Outcome, Selector, Step, View


def mean_loss(visit: Visit) -> Done:
    """Tell the loss of the received model on this client's samples."""
    return Done(meta={"probed_loss": float(visit.peek().losses.mean())})


@dataclass(frozen=True)
class PowerOfChoice(Selector):
    """Of d candidates drawn by size, the k with the highest loss train."""

    paper: ClassVar[str] = "Cho et al., AISTATS 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"sizes"})
    programs: ClassVar[Mapping[str, Program]] = MappingProxyType({"probe-loss": mean_loss})

    candidates: Natural = 0  # d; 0 means twice the clients of a round

    def select(self, state: None, view: View) -> Generator[Step, Outcome, list[int]]:
        """Draw candidates, probe them, keep the k highest losses."""
        d = max(self.candidates or 2 * view.k, view.k)
        drawn = draw_by_size(view, min(d, len(view.eligible)))
        probe = yield Step(tuple(Ask(i) for i in sorted(drawn.tolist())), kind="probe-loss", combine=False)
        loss = {r.client: float(r.meta["probed_loss"]) for r in probe.reports}  # type: ignore[arg-type]
        known = {client: -np.inf if np.isnan(value) else value for client, value in loss.items()}
        highest_first = sorted(known, key=lambda client: (-known[client], view.roster.key[client]))
        return highest_first[: view.k]

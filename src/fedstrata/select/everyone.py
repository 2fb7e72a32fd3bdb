"""Full participation, as cross-silo studies and FedSGD have it."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.serverside import Selector, View


@dataclass(frozen=True)
class Everyone(Selector):
    """Every available client trains, whatever `train.clients_per_round` says."""

    def select(self, state: None, view: View) -> list[int]:
        """Take all."""
        everyone: list[int] = view.eligible.tolist()
        return everyone

"""Full participation, as cross-silo studies and FedSGD have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, View


@dataclass(frozen=True)
class Everyone(Selector):
    """Every available client trains, whatever `train.clients_per_round` says."""

    tells_chances: ClassVar[bool] = True

    def select(self, state: None, view: View) -> list[Ask]:
        """Take all."""
        return [Ask(client, chance=1.0) for client in view.eligible.tolist()]

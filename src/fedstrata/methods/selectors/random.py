"""McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, View


@dataclass(frozen=True)
class Random(Selector):
    """Every client is equally likely, without replacement."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    tells_chances: ClassVar[bool] = True

    def select(self, state: None, view: View) -> list[Ask]:
        """Draw k clients."""
        drawn = view.rng("select").choice(view.eligible, view.k, replace=False)
        return [Ask(client, chance=view.k / len(view.eligible)) for client in drawn.tolist()]

"""McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

With norms that meet: Wang, Shi and Chang, Why Batch Normalization Damage Federated Learning on Non-IID Data?, TNNLS
2023 (FedTAN). The first local step of a round is taken together: every batch norm uses statistics, and gradients of
statistics, averaged over the clients. The other steps are ordinary local ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Driver
from fedstrata.core.steps import Select, Step, Steps, View


@dataclass(frozen=True)
class Rounds(Driver):
    """All selected clients train side by side from the same model, once a round."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    # whose statistics batch norms use in the first local step: own, or averaged by client (FedTAN) or by sample
    norms: Literal["own", "clients", "samples"] = "own"

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse to average the statistics of norms that are not there."""
        if self.norms != "own" and not plan.space.normed:
            fit = 'use one that has, such as mlp with model.norm = "batch"'
            return f'norms = "{self.norms}" averages batch norms, and the model has none; {fit}'
        return None

    @property
    def together(self) -> bool:
        """Clients whose norms meet do so in one process."""
        return self.norms != "own"

    def round(self, state: None, view: View, select: Select) -> Steps:
        """Ask everybody at once."""
        asks = yield from select()
        yield Step(tuple(asks), together=None if self.norms == "own" else self.norms)

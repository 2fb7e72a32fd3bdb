"""Li and Lyu, Convergence Analysis of Sequential Federated Learning on Heterogeneous Data, NeurIPS 2023.

The model travels from client to client in a random order; the last one's model is the round's result. A client
whose report is lost is skipped and the chain goes on from its predecessor's model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Driver, Schedule
from fedstrata.core.steps import Select, Step, Steps, View
from fedstrata.methods.drivers.passing import Passing
from fedstrata.methods.drivers.scheduled import expect_stratified
from fedstrata.methods.server_steps.sgd import ServerSgd


@dataclass(frozen=True)
class Chain(Driver):
    """The model travels from client to client; each trains from its predecessor's model."""

    paper: ClassVar[str] = "Li and Lyu, NeurIPS 2023"
    side_by_side: ClassVar[bool] = False

    def following(self, schedule: Schedule) -> Driver:
        """Let the model travel along a schedule of labels."""
        return Passing(expect_stratified(schedule))

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse a server step, which would act after every hop."""
        if plan.server_steps["server_step"] != ServerSgd():
            return 'a chain takes the last model as it is; use method.server_step = "sgd" with lr = 1, momentum = 0'
        return None

    def round(self, state: None, view: View, select: Select) -> Steps:
        """Ask one client after another."""
        asks = yield from select()
        for hop, place in enumerate(view.rng("chain").permutation(len(asks))):
            yield Step(
                (asks[place],),
                source="peer" if hop else "server",
                sink="peer" if hop + 1 < len(asks) else "server",
            )

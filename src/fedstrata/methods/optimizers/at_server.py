"""The server's half of an optimizer: its memory travels with the model, or its steps are taken at the server."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstrata.core.client_parts import Optimizer, Rate
from fedstrata.core.flat_model import Model, Space
from fedstrata.core.messages import Sums, Tensors
from fedstrata.core.server_parts import ServerPart, View


@dataclass
class Memory:
    """What an optimizer remembers between steps."""

    slots: dict[str, Tensor]


@dataclass(frozen=True)
class Carried(ServerPart):
    """Sends the optimizer's memory with the model, and takes the mean of what comes back."""

    optimizer: Optimizer

    def init(self, view: View, model: Model) -> Memory:
        """Start at rest."""
        slots = self.optimizer.slots(view.space).items()
        return Memory({name: torch.zeros(s.shape, dtype=s.dtype or model.params.dtype) for name, s in slots})

    def broadcast(self, state: Memory) -> Tensors:
        """Send it along."""
        return state.slots

    def step(self, state: Memory, view: View, model: Model, proposal: Model, sums: Sums) -> Model:
        """Take it back."""
        state.slots = {name: sums.mean(name) for name in state.slots}
        return proposal


@dataclass(frozen=True)
class AtServer(Carried):
    """Takes the optimizer's step here: where a batch spans clients, only the server has its gradient.

    The combined update is minus that gradient. Running statistics of batch norms follow what the clients agreed on.
    Steps that were played as one were taken on the lane, which borrowed the memory and gives it back.
    """

    rate: Rate

    def broadcast(self, state: Memory) -> Tensors:
        """Send nothing: the memory stays here."""
        return {}

    def lend(self, state: Memory) -> Tensors:
        """Lend the memory to a lane that takes many steps as one."""
        return state.slots

    def step(self, state: Memory, view: View, model: Model, proposal: Model, sums: Sums) -> Model:
        """Move the model along the gradient."""
        if sums.joint:
            return super().step(state, view, model, proposal, sums)
        w, g = model.params.clone(), -sums.total["update"]
        rate = torch.tensor([self.rate.at(view.round, view.part)], dtype=w.dtype)
        self.optimizer.move(state.slots, w, g, rate)
        return Model(w, _running(view.space, model.buffers, sums.total.get("statistics")))


def _running(space: Space, buffers: Tensor, statistics: Tensor | None) -> Tensor:
    """Move running means and variances towards those of the batch."""
    if statistics is None:
        return buffers
    moved = buffers.clone()
    for norm in space.norms:
        for use in statistics:
            for place in (norm.mean, norm.var):
                if not place.of(use).isnan().any():
                    place.of(moved).lerp_(place.of(use).to(moved), norm.momentum)
    return moved

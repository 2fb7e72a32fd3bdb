"""The server's half of an optimizer: its memory travels with the model, or its steps are taken at the server."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstrata.core.client_parts import LearningRate, Optimizer
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.messages import Sums, Tensors
from fedstrata.core.server_parts import ServerStep
from fedstrata.core.steps import View


@dataclass
class OptimizerMemory:
    """What an optimizer remembers between steps."""

    slots: dict[str, Tensor]


@dataclass(frozen=True)
class Carried(ServerStep):
    """Sends the optimizer's memory with the model, and takes the mean of what comes back."""

    optimizer: Optimizer

    def init(self, view: View, model: FlatModel) -> OptimizerMemory:
        """Start at rest."""
        slots = self.optimizer.declare_memory(view.space).items()
        return OptimizerMemory({name: torch.zeros(s.shape, dtype=s.dtype or model.params.dtype) for name, s in slots})

    def broadcast(self, state: OptimizerMemory) -> Tensors:
        """Send it along."""
        return state.slots

    def step(self, state: OptimizerMemory, view: View, model: FlatModel, proposal: FlatModel, sums: Sums) -> FlatModel:
        """Take it back."""
        state.slots = {name: sums.mean(name) for name in state.slots}
        return proposal


@dataclass(frozen=True)
class AtServer(Carried):
    """Takes the optimizer's step here: where a batch spans clients, only the server has its gradient.

    The combined update is minus that gradient. Running statistics of batch norms follow what the clients agreed on.
    Steps that were run as one were taken on the trainer, which borrowed the memory and gives it back.
    """

    rate: LearningRate

    def broadcast(self, state: OptimizerMemory) -> Tensors:
        """Send nothing: the memory stays here."""
        return {}

    def lend(self, state: OptimizerMemory) -> Tensors:
        """Lend the memory to a trainer that takes many steps as one."""
        return state.slots

    def step(self, state: OptimizerMemory, view: View, model: FlatModel, proposal: FlatModel, sums: Sums) -> FlatModel:
        """Move the model along the gradient."""
        if sums.fused:
            return super().step(state, view, model, proposal, sums)
        w, g = model.params.clone(), -sums.total["update"]
        rate = torch.tensor([self.rate.at(view.round, view.part)], dtype=w.dtype)
        self.optimizer.step(state.slots, w, g, rate)
        return FlatModel(w, _running(view.space, model.buffers, sums.total.get("statistics")))


def _running(space: ParameterSpace, buffers: Tensor, statistics: Tensor | None) -> Tensor:
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

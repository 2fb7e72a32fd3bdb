"""Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019 (FedAvgM); without momentum, FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.options import BelowOne, Positive
from fedstrata.core.server_parts import ServerStep
from fedstrata.core.steps import View


@dataclass
class Velocity:
    """Momentum of the combined updates."""

    v: Tensor


@dataclass(frozen=True)
class ServerSgd(ServerStep):
    """Add the combined update, scaled and with momentum if asked for."""

    paper: ClassVar[str] = "Hsu et al., 2019"

    lr: Positive = 1.0
    momentum: BelowOne = 0.0

    def init(self, view: View, model: FlatModel) -> Velocity | None:
        """Keep a velocity only where there is momentum."""
        return Velocity(torch.zeros_like(model.params)) if self.momentum else None

    def step(self, state: Velocity | None, view: View, model: FlatModel, proposal: FlatModel, sums: Sums) -> FlatModel:
        """Move by lr * v, where v <- momentum v + update."""
        if state is None and self.lr == 1.0:
            return proposal
        move = proposal.params - model.params
        if state is not None:
            state.v = move = self.momentum * state.v + move
        return FlatModel(model.params + self.lr * move, proposal.buffers)

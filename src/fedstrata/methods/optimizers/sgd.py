"""Stochastic gradient descent, as torch.optim.SGD computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedstrata.core.client_parts import Optimizer
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Slot, Tensors
from fedstrata.core.options import BelowOne, NonNegative


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Stochastic gradient descent, with momentum and weight decay if asked for."""

    momentum: BelowOne = 0.0
    weight_decay: NonNegative = 0.0
    state: Literal["fresh", "kept", "carried"] = "fresh"

    def declare_memory(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Remember the velocity."""
        return {"v": Slot((space.P,))} if self.momentum else {}

    def step(self, own: Tensors, w: Tensor, g: Tensor, rate: Tensor) -> None:
        """Step along the gradient."""
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)
        if self.momentum:
            g.copy_(own["v"].mul_(self.momentum).add_(g))
        w.sub_(g.mul_(rate))  # without a copy: for large models on single samples, memory is what a step costs

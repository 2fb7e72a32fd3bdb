"""Stochastic gradient descent at the client, as torch.optim.SGD computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedstrata.clientside import Buffers, LocalPart, Visit
from fedstrata.messages import Slot, Tensors
from fedstrata.options import BelowOne, NonNegative
from fedstrata.space import Space


@dataclass(frozen=True)
class Sgd(LocalPart):
    """Stochastic gradient descent, with momentum and weight decay if asked for."""

    momentum: BelowOne = 0.0
    weight_decay: NonNegative = 0.0

    def lane(self, space: Space) -> Mapping[str, Slot]:
        """Hold the velocity."""
        return {"v": Slot((space.P,))} if self.momentum else {}

    def fill(self, own: Tensors, buf: Buffers, visit: Visit) -> None:
        """Start at rest: nothing of the last client may remain."""
        if self.momentum:
            own["v"].zero_()

    def grad(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Step along the gradient."""
        if self.weight_decay:
            buf.g.add_(buf.w, alpha=self.weight_decay)
        move = own["v"].mul_(self.momentum).add_(buf.g) if self.momentum else buf.g
        buf.w.sub_(rate * move)

"""Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, as torch.optim.Adam computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedstrata.clientside import Buffers, LocalPart, Visit
from fedstrata.messages import Slot, Tensors
from fedstrata.options import BelowOne, NonNegative, Positive
from fedstrata.space import Space


@dataclass(frozen=True)
class Adam(LocalPart):
    """Adam, its moments fresh at every visit."""

    paper: ClassVar[str] = "Kingma and Ba, ICLR 2015"

    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0

    def lane(self, space: Space) -> Mapping[str, Slot]:
        """Hold both moments."""
        return {"m": Slot((space.P,)), "v": Slot((space.P,))}

    def fill(self, own: Tensors, buf: Buffers, visit: Visit) -> None:
        """Start from zero."""
        own["m"].zero_()
        own["v"].zero_()

    def grad(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Step along the scaled first moment; the powers of beta come from the step counter, not from the host."""
        if self.weight_decay:
            buf.g.add_(buf.w, alpha=self.weight_decay)
        m = own["m"].mul_(self.beta1).add_(buf.g, alpha=1 - self.beta1)
        v = own["v"].mul_(self.beta2).add_(buf.g * buf.g, alpha=1 - self.beta2)
        t = (buf.t + 1).to(buf.w.dtype)
        m_hat, v_hat = m / (1 - self.beta1**t), v / (1 - self.beta2**t)
        buf.w.sub_(rate * m_hat / (v_hat.sqrt() + self.eps))

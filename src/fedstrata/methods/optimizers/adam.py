"""Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, as torch.optim.Adam computes it.

Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019: AdamW, as torch.optim.AdamW does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedstrata.core.client_parts import Optimizer
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Slot, Tensors
from fedstrata.core.options import BelowOne, NonNegative, Positive


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam: steps along the first moment of the gradient, scaled by the second."""

    paper: ClassVar[str] = "Kingma and Ba, ICLR 2015"

    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    state: Literal["fresh", "kept", "carried"] = "fresh"

    def declare_memory(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Remember both moments, and the number of steps they are made of."""
        return {"m": Slot((space.P,)), "v": Slot((space.P,)), "t": Slot((1,))}

    def step(self, own: Tensors, w: Tensor, g: Tensor, rate: Tensor) -> None:
        """Step along the scaled first moment; the powers of beta come from a tensor, not from the host."""
        self._decay(w, g, rate)
        m = own["m"].mul_(self.beta1).add_(g, alpha=1 - self.beta1)
        v = own["v"].mul_(self.beta2).add_(g * g, alpha=1 - self.beta2)
        t = own["t"].add_(1)
        m_hat, v_hat = m / (1 - self.beta1**t), v / (1 - self.beta2**t)
        w.sub_(rate * m_hat / (v_hat.sqrt() + self.eps))

    def _decay(self, w: Tensor, g: Tensor, rate: Tensor) -> None:
        """Add the weights to the gradient, whose moments they enter."""
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay shrinks the weights themselves, beside its moments."""

    paper: ClassVar[str] = "Loshchilov and Hutter, ICLR 2019"

    weight_decay: NonNegative = 0.01

    def _decay(self, w: Tensor, g: Tensor, rate: Tensor) -> None:
        """Shrink the weights by the rate."""
        if self.weight_decay:
            w.mul_(1 - rate * self.weight_decay)
